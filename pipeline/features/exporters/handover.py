"""Hands an archive and any number of blobs from an exporter's process to the one that stores them.

The exporter's process writes to files that were opened before it was forked. So nothing of the
store is looked at in the fork, where each system call that names a file is seen and costs two
processes a tenth of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from pipeline.store.blobs import BlobWriter
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.store import Store


class Handover:
    """A fork gives with `archive` and `put`, and says with `to_json` what it gave; the process that
    forked it takes all of it with `store_all`."""

    def __init__(self, archive: BinaryIO, blobs: BinaryIO) -> None:
        self._archive, self._blobs = archive, blobs
        self._sizes: dict[Digest, int] = {}
        self.archive = BlobWriter(archive)

    def __reduce__(self) -> tuple[type[Handover], tuple[BinaryIO, BinaryIO]]:
        """Go to another process before anything was given, by the two files."""
        return Handover, (self._archive, self._blobs)

    def empty(self) -> None:
        """Drop what a process gave that died."""
        for file in (self._archive, self._blobs):
            file.seek(0)
            file.truncate()

    def put(self, data: bytes) -> Digest:
        """Hand a blob over and return its digest."""
        blob = hash_bytes(data)
        if blob not in self._sizes:
            self._sizes[blob] = len(data)
            self._blobs.write(data)
            self._blobs.flush()  # or a fork that the exporter makes writes it once more
        return blob

    def to_json(self) -> dict[str, Any]:
        """Return the argument of `store_all`, after all was given."""
        self._archive.flush()
        return {"archive": self.archive.digest, "sizes": list(self._sizes.values())}

    def store_all(self, store: Store, given: Mapping[str, Any]) -> Digest:
        """Store the archive and the blobs, one of them in memory at a time; return the archive's
        digest."""
        with open(self._blobs.name, "rb") as file:
            for size in given["sizes"]:
                store.put(file.read(size))
        archive = Digest(given["archive"])
        store.adopt(self._archive, archive)
        return archive


@contextmanager
def handing_over(store: Store) -> Iterator[Handover]:
    """Open the files of a handover, which are removed at the end of the block unless stored."""
    with store.scratch() as archive, store.scratch() as blobs:
        yield Handover(archive, blobs)
