"""Records which environment variables are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from pipeline.plan.reads import WHOLE_ENVIRONMENT

_PASSING = (
    "os",
    "_collections_abc",
    "collections.abc",
    __name__,
)  # they read on behalf of others
# Library modules that iterate over all variables to take those with the library's prefix. Such a
# module is shown only these, so that this holds for every release of the library.
_PREFIXES = {"numba.core.config": "NUMBA_", "dask.config": "DASK_"}


def record_environment(
    variables: dict[str, str | None], readers: dict[str, list[str]]
) -> None:
    """Record, from now on, which environment variables this process reads through `os`.

    `variables` receives their original values, and `readers` the files of the code that asks for
    each by name. Variables that the process set itself don't count.

    A library that takes the variables with a prefix is recorded as such, `NUMBA_*`, and with each
    of these variables. The mappings stay the same objects, since modules hold them. Reads of native
    code are not recorded.
    """
    _Recording.data = os.environ._data  # type: ignore[attr-defined]
    _Recording.found, _Recording.readers, _Recording.own = variables, readers, set()
    for mapping in (os.environ, os.environb):
        mapping.__class__ = _Recording  # type: ignore[assignment]


class _Recording(os._Environ):  # type: ignore[type-arg]
    data: dict[bytes, bytes]
    found: dict[str, str | None]
    readers: dict[str, list[str]]
    own: set[str]
    copied = False  # for a subprocess, say, which then reads each by name

    def __getitem__(self, key: Any) -> Any:
        _note(os.fsdecode(key))
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
        prefix = _PREFIXES.get(
            _find_frame(sys._getframe(1)).f_globals.get("__name__", "")
        )
        if prefix is None or self is not os.environ:
            self._read_all()
            return super().__iter__()
        self.found.setdefault(f"{prefix}{WHOLE_ENVIRONMENT}", None)
        return (name for name in super().__iter__() if name.startswith(prefix))

    def __len__(self) -> int:
        self._read_all()
        return super().__len__()

    def __repr__(self) -> str:
        self._read_all()
        return super().__repr__()

    def _read_all(self) -> None:
        _Recording.copied = True
        for key, value in self._data.items():  # type: ignore[attr-defined]
            if (name := os.fsdecode(key)) not in self.own:
                self.found.setdefault(name, os.fsdecode(value))


def _note(name: str) -> None:
    """Record that a variable is read, and the file that reads it."""
    recording = _Recording
    if name in recording.own:
        return
    value = recording.data.get(os.fsencode(name))
    recording.found.setdefault(name, None if value is None else os.fsdecode(value))
    if not recording.copied:
        reader, readers = _find_reader(), recording.readers.setdefault(name, [])
        readers += [] if reader in readers else [reader]


# Dynamo, which follows the code of a model, calls this function instead of following it
# (`torch._dynamo.assume_constant_result`), so the variables that a traced model reads are recorded.
_note._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find_reader() -> str:
    """Return the file of the code that asks for a variable."""
    return os.path.abspath(_find_frame(sys._getframe(3)).f_code.co_filename)


def _find_frame(frame: FrameType) -> FrameType:
    """Return the frame of the code that reads, skipping modules that read on its behalf."""
    while frame.f_back is not None and frame.f_globals.get("__name__") in _PASSING:
        frame = frame.f_back
    return frame
