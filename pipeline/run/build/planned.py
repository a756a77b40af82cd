"""Archives as they were planned: which program stands in one, and that it stays so. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pipeline.plan.corrections import correct_record
from pipeline.program.archive_facts import identify_program
from pipeline.program.archive_reader import changed, expected_stamps
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import FileDigests, read_stamp, stamp_of
from pipeline.store.store import MissingBlobError, Store

QUANTIZED_ENTRY = "forward"  # what the archive of a quantized program calls it


def identify_source(source: MethodSource, store: Store) -> tuple[Path, Digest]:
    """Return the archive of a method, which holds the program that was planned, and the digest of
    the program's structure.

    Raises SourceError for a user's file that can't be read; and MissingBlobError for an exporter's
    archive that is no longer whole, and where a result that says which program this is, and may
    come of a remote, was wrong: it is gone, so that planning again finds what is right.
    """
    archive = source.archive
    if source.exported:
        assert source.content is not None  # the archive is a blob of the store
        archive = store.verified_path(source.content)
    program, names, structure = identify_program(archive, source.entry)
    if (program, names) != (source.program, source.names):
        correct_record(source, archive, store)
        raise MissingBlobError(
            f"{archive.name}: {source.entry}: the record in the store or its remote names "
            "another program; the record was dropped"
        )
    return archive, structure


@contextmanager
def guard_sources(
    sources: Sequence[MethodSource],
    store: Store,
    digests: FileDigests | None = None,
) -> Iterator[None]:
    """Make sure that archives are what was planned while their programs are used, whose weights are
    mapped.

    Args:
        digests: may know the digest of a user's file by its stamp, in the process that planned.

    Raises SourceError where a user's is another file by now, and MissingBlobError where one of the
    store is.
    """
    contents = {
        source.archive: source.content for source in sources if not source.exported
    }
    blobs = {source.content for source in sources if source.exported and source.content}
    places = {blob: _find_inode(store.blob_path(blob)) for blob in blobs}
    with ExitStack() as stack:
        for path, content in contents.items():
            assert content is not None  # a user's file was hashed for the plan
            stack.enter_context(_guard_file(path, content, digests or FileDigests()))
        yield
        for (
            blob,
            inode,
        ) in places.items():  # whose times change when somebody else uses it
            if not inode or inode != _find_inode(store.verified_path(blob)):
                raise MissingBlobError(f"the exported program {blob} was replaced")


@contextmanager
def _guard_file(path: Path, content: Digest, digests: FileDigests) -> Iterator[None]:
    """Open a user's archive, and make sure that whoever opens it meanwhile reads that very file,
    which keeps its content. What stands at the path may be exchanged and put back."""
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except OSError as error:
        raise SourceError(changed(path)) from error
    with file:
        stamp = stamp_of(os.fstat(file.fileno()))
        expected_stamps[path] = stamp
        try:
            yield
        finally:  # whatever went wrong, this is why
            del expected_stamps[path]
            is_same = (
                stamp == stamp_of(os.fstat(file.fileno()))
                and stamp == _find_stamp(path)
                and content == digests.hash_open(path, file)
            )
            if not is_same:
                raise SourceError(changed(path))


def _find_stamp(path: Path) -> list[int]:
    with suppress(OSError):
        return read_stamp(path)
    return []


def _find_inode(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_ino
    return 0
