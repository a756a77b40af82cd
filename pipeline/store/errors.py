"""Errors that a user can act on: where, what is wrong, and what would be right, on one line each.

A bug is never one of these; it keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


class PipelineError(Exception):
    """A mistake outside this code; its message is what the user reads."""


class SourceError(PipelineError):
    """A model source that cannot be read, or that is not what it should be."""


class DeviceError(PipelineError):
    """A device refused a package, a computation or a call. `reason` is the message without the
    subject; `debug_handle` that of the instruction of a delegate that failed, where it is known."""

    def __init__(self, subject: str, reason: str, debug_handle: int | None = None) -> None:
        super().__init__(subject + reason)
        self.subject = subject
        self.reason = reason
        self.debug_handle = debug_handle

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.subject, self.reason, self.debug_handle)


@dataclass(frozen=True)
class Problem:
    """One mistake in a file. `path` leads to it inside the file (`methods.encode.quantize`) and is
    empty for the file as a whole; `known` says what would be right; `line` is where it was written,
    from 1, and 0 where that is no one line."""

    file: str
    path: str
    what: str
    known: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        where = ": ".join(part for part in (place, self.path) if part)
        return f"{where}: {self.what}" + (f"; {self.known}" if self.known else "")

    @property
    def order(self) -> tuple[str, int, str, str, str]:
        return self.file, self.line, self.path, self.what, self.known


class ConfigErrors(PipelineError):  # noqa: N818 (several)
    """All that is wrong with one config or several, a line each, sorted by file, line and path."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda problem: problem.order))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def told_once(problems: Iterable[Problem], who: str, told: dict[Problem, str]) -> Iterator[str]:
    """A line for each problem, but for those that were `told` of somebody else, such as mistakes
    in a file that many configs extend: of these a line for each file and somebody."""
    others: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        first = told.setdefault(problem, who)
        if first == who:
            yield str(problem)
        else:
            others[problem.file, first] += 1
    for (file, first), number in others.items():
        noun = "a mistake that was" if number == 1 else f"{number} mistakes that were"
        yield f"{file}: {noun} told of {first}"


def join(path: str, key: object) -> str:
    """The path of a member: `methods.encode`, `partitioners[0]`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if isinstance(key, str) and re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{path}.{name}" if path else str(name)


def did_you_mean(word: str, known: Iterable[str], most: int | None = None) -> str:
    """What to say of a word that is not known: the nearest one, if one is near, and all of them,
    or the first `most`."""
    names = list(known)
    spelled = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(word.lower(), spelled, n=1)
    guess = f"did you mean '{spelled[near[0]]}'? " if near else ""
    more = f" and {len(names) - most} more" if most is not None and len(names) > most else ""
    return f"{guess}known: {', '.join(names[:most]) or 'none'}{more}"


def shown(value: object) -> str:
    """A value as messages show it: on one line, short, in the words of YAML."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "mapping"
        return f"a {kind}" if value else f"an empty {kind}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "an enormous number"
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"
