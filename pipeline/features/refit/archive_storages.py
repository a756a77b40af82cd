"""Finds the storages of an archive's tensors as byte ranges of the file, and reads them on demand.

No torch here. Each storage has the digest that its bytes must have: whoever reads it checks that,
so an archive may be damaged or change at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.compile.inspect.arrays import Array
from pipeline.program.archive_facts import Contents
from pipeline.program.archive_reader import KINDS, ArchiveReader, open_archive
from pipeline.program.stored_zip import pieces_at, read_at
from pipeline.store.digest import Digest, WrongContentError, hash_bytes


@dataclass(frozen=True)
class FileStorage:
    """A storage at its place in an open file, with its size in bytes and its expected digest."""

    file: int
    begin: int
    nbytes: int
    digest: Digest

    def read(self) -> Array:
        """Return all bytes. Raises WrongContentError, and what `read_at` raises."""
        array = np.empty(self.nbytes, np.uint8)
        read_at(self.file, self.begin, array.data)
        if hash_bytes(array.data) != self.digest:
            raise WrongContentError(self.digest)
        return array

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces, each valid until the next. Raises what `read_at` raises.

        The caller must check that they have the expected digest.
        """
        return pieces_at(self.file, self.begin, self.nbytes)


# A storage of tensors: its bytes in memory, or in a file until they are read.
Storage = Array | FileStorage


def read_storage(storage: Storage) -> Array:
    """Return all bytes of a storage. Raises what `FileStorage.read` raises."""
    return storage if isinstance(storage, np.ndarray) else storage.read()


def hash_storage(storage: Storage) -> Digest:
    """Return the digest that the bytes of a storage have, or must have once they are read."""
    return (
        hash_bytes(storage.data) if isinstance(storage, np.ndarray) else storage.digest
    )


def iter_pieces(storage: Storage) -> Iterator[memoryview]:
    """Yield the bytes of a storage in pieces, as `FileStorage.pieces` does."""
    if isinstance(storage, np.ndarray):
        yield storage.data
    else:
        yield from storage.pieces()


class ArchiveStorages:
    """The storages of the programs in an open archive."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file
        self._places: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ArchiveStorages]:
        """Open an archive. Raises OSError."""
        with open(path, "rb", buffering=0) as file:
            yield cls(path, file.fileno())

    def find(self, entry: str, kind: str, name: str, contents: Contents) -> FileStorage:
        """Return the storage of a tensor, from the weights or from the constants.

        `contents` are those of the entry's program (`identify_program`).

        Raises ValueError if there is no such tensor, or it is a pickled object. Raises SourceError.
        """
        if (entry, kind) not in self._places:
            with open_archive(self._path) as reader:  # once for both kinds
                for stored_kind in KINDS:
                    self._places[entry, stored_kind] = _find_places(
                        reader, entry, stored_kind
                    )
        places = self._places[entry, kind]
        if name not in places:
            raise ValueError(
                f"the {kind} of '{entry}' contain no plain tensor '{name}'"
            )
        begin, size = places[name]
        return FileStorage(self._file, begin, size, contents[name])


def _find_places(
    reader: ArchiveReader, entry: str, kind: str
) -> dict[str, tuple[int, int]]:
    """Return where each tensor's storage begins in the file, and its size in bytes."""
    places: dict[str, tuple[int, int]] = {}
    for name, record in reader.payloads(kind, entry).items():
        if record["use_pickle"]:
            continue
        member = f"data/{kind}/{record['path_name']}"
        begin = reader.members.place(member)
        if begin is not None:
            places[name] = begin, reader.members.size(member)
    return places
