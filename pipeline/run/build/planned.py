"""Checks that archives still hold the programs that were planned. Doesn't import torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.plan.corrections import correct_record
from pipeline.program.archive_facts import identify_program
from pipeline.program.archive_reader import changed, expected_stamps
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import FileDigests, find_stamp, stamp_of
from pipeline.store.store import MissingBlobError, Store

QUANTIZED_ENTRY = "forward"  # the program's name in the archive of a quantized method
# The stamps of blobs when this process hashed them. Methods share an archive: a package of ten
# would otherwise hash it ten times. The end of `guard_sources` hashes it in any case.
_hashed: dict[Digest, list[int]] = {}


def find_archive(source: MethodSource, store: Store) -> Path:
    """Return the archive of a method, after checking that it holds the planned program.

    Raises:
        SourceError: the user's file can't be read.
        MissingBlobError: an exporter's archive is damaged or gone, or the record that identifies
            the program, possibly from a remote, was wrong. That record is dropped, so that the next
            planning finds the right program.
    """
    archive = source.archive
    if source.exported:
        assert source.content is not None  # the archive is a blob of the store
        archive = store.blob_path(source.content)
        if find_stamp(archive) != _hashed.get(source.content):
            store.verified_path(source.content)
            _hashed[source.content] = find_stamp(archive)
    identity = identify_program(archive, source.entry)
    if identity[:2] != (source.program, source.names):
        correct_record(source, archive, store)
        raise MissingBlobError(
            f"{archive.name}: {source.entry}: the record in the store or its remote names "
            "another program; the record was dropped"
        )
    return archive


@contextmanager
def guard_sources(
    sources: Sequence[MethodSource],
    store: Store,
    digests: FileDigests | None = None,
) -> Iterator[None]:
    """Ensure that archives don't change within the context, which uses their memory-mapped weights.

    Args:
        digests: may know the digest of a user's file by its stamp, in the process that planned.

    Raises:
        SourceError: a user's file has changed.
        MissingBlobError: a blob of the store was replaced.
    """
    contents = {
        source.archive: source.content for source in sources if not source.exported
    }
    inodes = {
        source.content: find_stamp(store.blob_path(source.content))[3:]
        for source in sources
        if source.exported and source.content
    }
    with ExitStack() as stack:
        for path, content in contents.items():
            stack.enter_context(_guard_file(path, content, digests or FileDigests()))
        yield
        # Compare inodes: the times of a blob change when another process uses it.
        for blob, inode in inodes.items():
            if not inode or inode != find_stamp(store.verified_path(blob))[3:]:
                raise MissingBlobError(f"the exported program {blob} was replaced")


@contextmanager
def _guard_file(
    path: Path, content: Digest | None, digests: FileDigests
) -> Iterator[None]:
    """Hold a user's archive open, and ensure that readers within the context get that very file.

    Its content must stay the same, even if the file at the path was exchanged and put back.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except OSError as error:
        raise SourceError(changed(path)) from error
    with file:
        stamp = stamp_of(os.fstat(file.fileno()))
        expected_stamps[path] = stamp
        try:
            yield
        finally:  # even after an error: a changed file would explain it
            del expected_stamps[path]
            is_same = (
                stamp == stamp_of(os.fstat(file.fileno()))
                and stamp == find_stamp(path)
                and content == digests.hash_open(path, file)
            )
            if not is_same:
                raise SourceError(changed(path))
