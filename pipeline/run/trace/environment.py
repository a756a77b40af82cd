"""Environment variables that are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any


def record_environment(found: dict[str, str | None]) -> None:
    """Record, from now on, which environment variables this process reads through `os`, and what
    they were; those that it set itself don't count.

    The mappings stay the same objects, since modules hold them. Native code is not heard.
    """
    recording = type("_Recording", (_Recording,), {"found": found, "own": set()})
    for mapping in (os.environ, os.environb):
        mapping.__class__ = recording  # type: ignore[assignment]


class _Recording(os._Environ):  # type: ignore[type-arg]
    found: dict[str, str | None]
    own: set[str]

    def __getitem__(self, key: Any) -> Any:
        value = self._data.get(self.encodekey(key))  # type: ignore[attr-defined]
        name = os.fsdecode(key)
        if name not in self.own:
            self.found.setdefault(name, None if value is None else os.fsdecode(value))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if os.fsdecode(key) not in self.found:
            self.own.add(os.fsdecode(key))

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        if os.fsdecode(key) not in self.found:
            self.own.add(os.fsdecode(key))

    def __iter__(self) -> Iterator[Any]:
        self._read_all()
        return super().__iter__()

    def __len__(self) -> int:
        self._read_all()
        return super().__len__()

    def __repr__(self) -> str:
        self._read_all()
        return super().__repr__()

    def _read_all(self) -> None:
        for key, value in self._data.items():  # type: ignore[attr-defined]
            if (name := os.fsdecode(key)) not in self.own:
                self.found.setdefault(name, os.fsdecode(value))
