"""Turns errors of other libraries into reasons, and finds the full disk behind an error.

A reason is the whole message on one line, without the text that torch and ExecuTorch add to every
message, such as how to log more.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator

from pipeline.store.files import DISK_FULL, name_full_disk
from pipeline.store.visible import one_line

_LONGEST = 1200  # characters; a longer reason keeps its beginning and its end
# Patterns are compiled on first use: a no-op run uses none.
_FRAMES = r' *File "[^"\n]+", line \d+, in [^\n]+(?:\n +[^\n]*)*'
# Advice on calls that the build makes, not the user; it runs to the end of the message.
_ADVICE = (
    r"(?ms)^(?:The error above occurred when calling torch\.export"
    r"|There are a few things to try:).*"
)
_NOISE = (
    r"(?m)For (?:more (?:information, run|details about|debugging help)|extended logs|C\+\+ stack)"
    r".*"
    r"|^\W*(?:If you suspect the guard was triggered|Set TORCH|Use tlparse|Developer debug context"
    r"|Caused by: \(|The following call raised this error|While executing %|from user code:"
    r"|Original traceback:(?:\nNone$)?|stack trace:|User Stack \().*"
    r"| \(https?://[^\s)]+\)"
)
_ENDED = r"[.;:,!?]$"
_NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
_LITTLE = 1 << 20  # bytes; a disk with less free space counts as full
# Torch's messages about an archive that it can't write, whatever the reason.
_ARCHIVE = r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos"


def reason(error: BaseException) -> str:
    """Return the messages of an error and its causes on one line, or its type if it has none."""
    parts: list[str] = []
    for number, cause in enumerate(iter_causes(error)):
        words = _shorten(str(cause))
        if words and not any(words in part for part in parts):
            parts.append(f"{type(cause).__name__}: {words}" if number else words)
    whole = ": ".join(parts) or type(error).__name__
    half = _LONGEST // 2
    return whole if len(whole) <= _LONGEST else f"{whole[:half]} ... {whole[-half:]}"


def iter_causes(error: BaseException, handled: bool = False) -> Iterator[BaseException]:
    """Yield an error and its causes; with `handled`, also the errors that were being handled."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or (cause.__context__ if handled else None)


def _shorten(text: str) -> str:
    """Return a message without noise, its lines joined into sentences on one line."""
    text = re.sub(_NOISE, "", re.sub(_FRAMES, "", re.sub(_ADVICE, "", text)))
    sentences = ""
    for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
        joint = "" if not sentences else " " if re.search(_ENDED, sentences) else "; "
        sentences += joint + line
    return one_line(sentences.removesuffix('."').rstrip(":"))


def find_full_disk(error: BaseException) -> OSError | None:
    """Return the full-disk error behind an error, with its folder, or None."""
    for cause in iter_causes(error, handled=True):
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return cause if cause.filename else name_full_disk(cause, _find_fullest())
        if re.search(_ARCHIVE, str(cause)) and is_full(_find_fullest()):
            return name_full_disk(_NO_ROOM, _find_fullest())
    return None


def _find_fullest() -> str:
    """Return the folder with the least free disk space, of those that other libraries write to.

    These are the folders for temporary files and for logs, and the folder in which exporters run.
    """
    return min(
        tempfile.gettempdir(), os.path.abspath("build"), os.getcwd(), key=_find_free
    )


def refuse_full_disk(folder: str) -> None:
    """Raise OSError if the disk of a folder has no free byte."""
    if not _find_free(folder):
        raise name_full_disk(_NO_ROOM, folder)


def _find_free(folder: str) -> float:
    """Return the number of free bytes on the disk of a folder, or infinity if it isn't known."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return math.inf
    return usage.free if usage.total else math.inf


def is_full(folder: str) -> bool:
    """Return whether the disk of a folder has no room left."""
    return _find_free(folder) < _LITTLE
