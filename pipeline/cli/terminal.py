"""Guards the output streams of doit and this package against terminal control sequences."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.store.visible import visible

# Lines that GitHub (`::error`, `##[error]`), Azure (`##vso[...]`) and TeamCity treat as commands.
_COMMAND = re.compile(r"^([ \t]*):(?=:)|#(?=#\w*\[)", re.MULTILINE)
_raw = False


def guard(stream: Any) -> Any:
    """Make a stream escape control sequences from now on, for all its users; return the stream.

    doit took its standard output when it was imported, before any module of ours, so the stream
    itself is modified. If its reader is gone, as with `| head`, the build continues without output.
    """
    if not hasattr(stream, "unguarded"):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        stream.unguarded = _unless_unread(stream, stream.write)
        stream.write = escaping(stream.unguarded)
        stream.flush = _unless_unread(stream, stream.flush)
    return stream


def escaping(write: Callable[..., object]) -> Callable[[str], int]:
    """Return a stream's method `write` that escapes text and passes it to the given function."""
    return lambda text: (write(text if _raw else _plain(text)), len(text))[1]


def _unless_unread(stream: Any, method: Callable[..., object]) -> Callable[..., object]:
    """Wrap a stream's method to discard output once the stream's reader is gone."""

    def call(*arguments: Any) -> object:
        try:
            return method(*arguments)
        except BrokenPipeError:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), stream.fileno())
            return None

    return call


def guard_standard_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            guard(stream)


class _Unguarded:
    def __init__(self, stream: Any) -> None:
        self.write = stream.unguarded
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unguarded(stream: Any) -> Any:
    """Return the unguarded form of a guarded stream, for our coloured output.

    Foreign text in that output must already be escaped.
    """
    return _Unguarded(stream)


@contextmanager
def as_it_is() -> Iterator[None]:
    """Within the block, print text unchanged, for the output of tasks that are not ours."""
    global _raw
    before = _raw
    _raw = True
    try:
        yield
    finally:
        _raw = before


def _plain(text: str) -> str:
    return _COMMAND.sub(_escape_command, visible(text))


def _escape_command(match: re.Match[str]) -> str:
    """Return the text before a command, with the command's marker escaped."""
    return f"{match[1] or ''}\\x{ord(match[0][-1]):02x}"
