"""Errors of other libraries as reasons: the whole message on one line, without what torch and
ExecuTorch add to every message, such as how to log more."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeline.store.visible import one_line

_LONGEST = 1200  # characters; of a longer reason the beginning and the end are kept
_FRAMES = re.compile(r' *File "[^"\n]+", line \d+, in [^\n]+(?:\n +[^\n]*)*')
# Advice on calls that a build makes, to the end of the message.
_ADVICE = re.compile(
    r"^(?:The error above occurred when calling torch\.export|There are a few things to try:).*",
    re.MULTILINE | re.DOTALL,
)
_NOISE = re.compile(
    r"For (?:more (?:information, run|details about|debugging help)|extended logs|C\+\+ stack).*"
    r"|^\W*(?:If you suspect the guard was triggered|Set TORCH|Use tlparse|Developer debug context"
    r"|Caused by: \(|The following call raised this error|While executing %|from user code:"
    r"|Original traceback:(?:\nNone$)?|stack trace:|User Stack \().*"
    r"| \(https?://[^\s)]+\)",
    re.MULTILINE,
)
_ENDED = re.compile(r"[.;:,!?]$")


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, with those of the errors that it was raised
    from, or its type if it has none."""
    parts: list[str] = []
    for number, cause in enumerate(chain(error)):
        words = _shorten(str(cause))
        if words and not any(words in part for part in parts):
            parts.append(f"{type(cause).__name__}: {words}" if number else words)
    whole = ": ".join(parts) or type(error).__name__
    half = _LONGEST // 2
    return whole if len(whole) <= _LONGEST else f"{whole[:half]} ... {whole[-half:]}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__


def _shorten(text: str) -> str:
    """Return a message without noise, with its lines as sentences of one line."""
    text = _NOISE.sub("", _FRAMES.sub("", _ADVICE.sub("", text)))
    sentences = ""
    for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
        joint = "" if not sentences else " " if _ENDED.search(sentences) else "; "
        sentences += joint + line
    return one_line(sentences.removesuffix('."').rstrip(":"))
