"""Archives as they were planned: which program stands in one, and that it stays so. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.program.archive_facts import ProgramIdentity, identify_program
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest, hash_file
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import read_stamp
from pipeline.store.store import MissingBlobError, Store

QUANTIZED_ENTRY = "forward"  # what the archive of a quantized program calls it


def identify_source(source: MethodSource, store: Store) -> tuple[Path, ProgramIdentity]:
    """Return the archive of a method, and the digests of its program.

    Raises SourceError for a user's file that can't be read, or where a result that says which
    program this is, and may come of a remote, is wrong; and MissingBlobError for an exporter's
    archive that is no longer whole.
    """
    archive = source.archive
    if source.exported:
        assert source.content is not None  # the archive is a blob of the store
        archive = store.verified_path(source.content)
    identity = identify_program(archive, source.entry)
    if (identity.program, identity.names) != (source.program, source.names):
        mistake = f"{source.entry}: the store or its remote says that another program stands here"
        raise SourceError(f"{archive.name}: {mistake}; `doit -a` believes neither")
    return archive, identity


@contextmanager
def guard_sources(
    sources: Sequence[MethodSource],
    store: Store,
    hash_archive: Callable[[Path], Digest] = hash_file,
) -> Iterator[None]:
    """Make sure that archives are what was planned while their programs are used, whose weights are
    mapped.

    Args:
        hash_archive: gives the digest of a user's file. The process that planned with it may know
            it by the stamp, as `FileDigests.hash` does.

    Raises SourceError where a user's is another file by now, and MissingBlobError where one of the
    store is.
    """
    contents = {
        source.archive: source.content for source in sources if not source.exported
    }
    blobs = {source.content for source in sources if source.exported and source.content}
    before = {path: path.exists() and read_stamp(path) for path in contents}
    places = {blob: _find_inode(store.blob_path(blob)) for blob in blobs}
    try:
        yield
    finally:  # whatever went wrong, this is why
        for path, content in contents.items():
            # The stamp tells a file that was exchanged and put back while it was read.
            unchanged = path.exists() and before[path] == read_stamp(path)
            if not unchanged or hash_archive(path) != content:
                raise SourceError(
                    f"{path.name}: changed while the build ran; run again"
                )
        for (
            blob,
            inode,
        ) in places.items():  # whose times change when somebody else uses it
            if not inode or inode != _find_inode(store.verified_path(blob)):
                raise MissingBlobError(
                    f"the exported program {blob} is another file by now"
                )


def _find_inode(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_ino
    return 0
