"""Errors that a user can act on: where, what is wrong, and what would be right, on one line each.

A bug is never reported as one of these; it keeps its traceback. The functions format parts of
messages.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from pipeline.store.reasons import find_full_disk, reason
from pipeline.store.visible import one_line

_MOST_ALIKE = 3  # packages that report a shared problem separately
_NONE: Mapping[Problem, Sequence[str]] = MappingProxyType({})
_COMPARED = 300  # words, and characters of each: the cost is their product


class PipelineError(Exception):
    """A mistake outside this code.

    The user reads its message, which has a line for each argument. Newlines within an argument,
    which may be foreign text, are escaped like all other invisible characters.
    """

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(map(one_line, self.args))

    def __str__(self) -> str:
        return "\n".join(self.lines)


class SourceError(PipelineError):
    """A model source can't be read, or isn't what it should be."""


class DeviceError(PipelineError):
    """A device refused a package, a method or a call.

    `reason` is the message without the subject. The others are None if unknown: `debug_handle` is
    the handle of the delegate's instruction that failed, `code` the error code of ExecuTorch's
    runtime, and `instruction` the number of the method's instruction that the device refused.
    """

    def __init__(
        self,
        subject: str,
        reason: str,
        debug_handle: int | None = None,
        code: int | None = None,
        instruction: int | None = None,
    ) -> None:
        super().__init__(subject + reason)
        self.subject = subject
        self.reason = reason
        self.debug_handle = debug_handle
        self.code = code
        self.instruction = instruction

    def __reduce__(self) -> tuple[object, ...]:
        details = (
            self.subject,
            self.reason,
            self.debug_handle,
            self.code,
            self.instruction,
        )
        return type(self), details


class Problem(NamedTuple):
    """One mistake in a file.

    `path` leads to the mistake inside the file (`methods.encode.quantize`), and is empty for the
    file as a whole; `known` says what would be right; `line` is the line of the mistake, from 1, or
    0 if it has no single line.
    """

    file: str
    path: str
    what: str
    known: str = ""
    line: int = 0

    @property
    def cause(self) -> Problem:
        """The same mistake without its file and line, so that it compares equal across files."""
        return self._replace(file="", line=0)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        where = ": ".join(filter(None, (place, self.path)))
        return one_line(
            f"{where}: {self.what}" + (f"; {self.known}" if self.known else "")
        )


class ConfigErrors(PipelineError):  # noqa: N818 (several)
    """All problems of one or several configs, a line each, sorted by file, line and path."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        order = attrgetter("file", "line", "path", "what", "known")
        self.problems = tuple(sorted(set(problems), key=order))
        super().__init__(self.problems)

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(map(str, self.problems))


def find_widespread(
    package_to_problems: Mapping[str, Iterable[Problem]],
) -> dict[Problem, list[str]]:
    """Return the problems that many packages share, each with these packages.

    A missing base is an example, or a copied typo.
    """
    cause_to_packages: dict[Problem, dict[str, None]] = {}
    for package, problems in package_to_problems.items():
        for problem in problems:
            cause_to_packages.setdefault(problem.cause, {})[package] = None
    return {
        cause: list(packages)
        for cause, packages in cause_to_packages.items()
        if len(packages) > _MOST_ALIKE
    }


def format_new_problems(
    problems: Iterable[Problem],
    package: str,
    reported: dict[Problem, str],
    widespread: Mapping[Problem, Sequence[str]] = _NONE,
) -> Iterator[str]:
    """Format the problems of a package, a line each.

    Problems already in `reported` for another package, such as mistakes in a file that two configs
    extend, are counted in one line per file and package. Problems in `widespread` (see
    `find_widespread`) get one line, under the first package, which lists the others. New problems
    are added to `reported`.
    """
    repeats: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        if packages := widespread.get(problem.cause):
            if problem.cause not in reported:
                reported[problem.cause] = package
                others = [name for name in packages if name != package]
                yield one_line(f"{problem}; also in {listed(others, _MOST_ALIKE)}")
        elif problem not in reported:
            reported[problem] = package
            yield str(problem)
        elif reported[problem] != package:
            repeats[problem.file, reported[problem]] += 1
    for (file, first), number in repeats.items():
        yield one_line(f"{file}: {plural(number, 'mistake')} reported for {first}")


def describe_error(problem: BaseException) -> str:
    """Describe the error that ended an action in one line; PipelineErrors describe themselves."""
    if isinstance(problem, PipelineError):
        return str(problem)
    if isinstance(problem, MemoryError):
        return "out of memory"
    if isinstance(problem, OSError):
        problem = find_full_disk(problem) or problem
        where = f"{problem.filename}: " if problem.filename else ""
        return one_line(f"{where}{problem.strerror or problem}")
    name, why = type(problem).__name__, reason(problem)
    return name if why == name else f"{name}: {why}"


def log_traceback(problem: BaseException) -> None:
    """Print a traceback to standard error, the log of an action.

    Output that a full disk can't take is lost, so that reporting a problem never fails.
    """
    with suppress(OSError):
        traceback.print_exception(problem)


def join(path: str, key: object) -> str:
    """Return the path of a member: `methods.encode`, `partitioners[0]`."""
    if isinstance(key, int):
        return f"{path}[{key:d}]"
    name = str(key) if re.fullmatch(r"[\w-]+", str(key)) else repr(str(key))
    return f"{path}.{name}" if path else name


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: `1 method`, `2,000 methods`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(words: Iterable[str], most: int | None = None) -> str:
    """Format a list of at most `most` words: `a, b and 3 more`."""
    words = list(words)
    more = (
        f" and {len(words) - most} more"
        if most is not None and len(words) > most
        else ""
    )
    return ", ".join(words[:most]) + more


def did_you_mean(
    word: str, candidates: Iterable[str], most: int = 100, impossible: str = ""
) -> str:
    """Suggest the nearest known word, if any, and list at most `most` of the known words.

    A word that is `impossible` is never suggested.
    """
    names = list(candidates)
    spelled = {name.lower(): name for name in reversed(names[:_COMPARED])}
    if "." not in word:  # head, of model.head
        for name in names[:_COMPARED]:
            spelled.setdefault(name.rpartition(".")[2].lower(), name)
    spelled.pop(impossible.lower(), None)
    import difflib  # imported lazily: a no-op run doesn't need it

    near = difflib.get_close_matches(word[:_COMPARED].lower(), spelled, n=1)
    guess = f"did you mean '{spelled[near[0]]}'? " if near else ""
    return f"{guess}known: {listed(names, most) or 'none'}"


def shown(value: object) -> str:
    """Format a value for a message: short, on one line, in YAML's terms."""
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
