"""Hands an archive and any number of blobs from an exporter's process to the one that stores them.

The exporter's process writes to files that were opened before the fork. It therefore never accesses
the store, where each system call on a file name would be traced, which costs two processes a tenth
of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from pipeline.store.blobs import BlobWriter
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.store import Store


class Handover:
    """Hands over what an exporter's fork writes.

    The fork writes to `archive` and calls `put`, and `to_json` lists what it wrote; the parent
    process stores everything with `store_all`.
    """

    def __init__(self, archive: BinaryIO, blobs: BinaryIO) -> None:
        self._archive, self._blobs = archive, blobs
        self._sizes: dict[Digest, int] = {}
        self.archive = BlobWriter(archive)

    def __reduce__(self) -> tuple[type[Handover], tuple[BinaryIO, BinaryIO]]:
        """Pickle the two files, before anything is written."""
        return Handover, (self._archive, self._blobs)

    def empty(self) -> None:
        """Drop the data of a process that died."""
        for file in (self._archive, self._blobs):
            file.seek(0)
            file.truncate()

    def put(self, data: bytes) -> Digest:
        """Hand a blob over and return its digest."""
        blob = hash_bytes(data)
        if blob not in self._sizes:
            self._sizes[blob] = len(data)
            self._blobs.write(data)
            self._blobs.flush()  # otherwise a fork by the exporter writes it again
        return blob

    def to_json(self) -> dict[str, Any]:
        """Return the argument of `store_all`, after everything was handed over."""
        self._archive.flush()
        return {"archive": self.archive.digest, "sizes": list(self._sizes.values())}

    def store_all(self, store: Store, given: Mapping[str, Any]) -> Digest:
        """Store the archive and the blobs, one at a time in memory; return the archive's digest."""
        with open(self._blobs.name, "rb") as file:
            for size in given["sizes"]:
                store.put(file.read(size))
        archive = Digest(given["archive"])
        store.adopt(self._archive, archive)
        return archive


@contextmanager
def handing_over(store: Store) -> Iterator[Handover]:
    """Open the files of a handover, which are removed at the end of the context unless stored."""
    with store.scratch() as archive, store.scratch() as blobs:
        yield Handover(archive, blobs)
