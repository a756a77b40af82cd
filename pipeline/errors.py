"""Errors that a user can act on: where, what is wrong, and what would be right, on one line each.

A bug is never one of these; it keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class PipelineError(Exception):
    """A mistake outside this code; its message is what the user reads."""


class SourceError(PipelineError):
    """A model source that cannot be read, or that is not what it should be."""


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in a file. `path` leads to it inside the file (`methods.encode.quantize`) and is
    empty for the file as a whole; `known` says what would be right."""

    file: str
    path: str
    what: str
    known: str = ""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.path) if part)
        return f"{where}: {self.what}" + (f"; {self.known}" if self.known else "")


class ConfigErrors(PipelineError):  # noqa: N818 (several)
    """All that is wrong with one config or several, a line each, sorted by file and path."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def did_you_mean(word: str, known: Iterable[str], most: int | None = None) -> str:
    """What to say of a word that is not known: the nearest one, if one is near, and all of them,
    or the first `most`."""
    names = list(known)
    spelled = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(word.lower(), spelled, n=1)
    guess = f"did you mean '{spelled[near[0]]}'? " if near else ""
    more = f" and {len(names) - most} more" if most is not None and len(names) > most else ""
    return f"{guess}known: {', '.join(names[:most]) or 'none'}{more}"
