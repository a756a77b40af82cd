"""The storages of an archive's tensors as bytes of the file, which are read when they are needed.

No torch here. Who opens an archive makes sure that it is the one that was planned, before and
after: nothing is hashed.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.program.archive_reader import open_archive


class ArchiveStorages:
    """The storages of the programs in an archive, which stay readable while it is held."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._places: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}

    def read(self, entry: str, kind: str, name: str) -> np.ndarray[Any, Any]:
        """Return all bytes of the storage of a tensor: of the weights, or of the constants.

        Raises ValueError where there is no such tensor, or it is a pickled object; and SourceError.
        """
        if (entry, kind) not in self._places:
            self._places[entry, kind] = self._find(entry, kind)
        if (place := self._places[entry, kind].get(name)) is None:
            raise ValueError(f"the {kind} of '{entry}' hold no plain tensor '{name}'")
        return np.frombuffer(self._data, np.uint8, place[1], place[0])

    def _find(self, entry: str, kind: str) -> dict[str, tuple[int, int]]:
        """Return where the storage of each tensor begins in the file, and its bytes."""
        found: dict[str, tuple[int, int]] = {}
        with open_archive(self._path) as reader:
            for name, record in reader.payloads(kind, entry).items():
                member = f"data/{kind}/{record['path_name']}"
                if not record["use_pickle"] and (begin := reader.members.place(member)) is not None:
                    found[name] = begin, reader.members.size(member)
        return found
