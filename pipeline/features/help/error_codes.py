"""The codes of errors: how a message maps to its code, and what `doit help PTE101` prints.

error_codes.json holds the entries; `python -m tools.reference` generates it from its errors.toml
and from the messages in the code. It is read only when an error is shown.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pipeline.store.errors import PipelineError

LEAST_LETTERS = 10  # in a template's part: fewer match unrelated messages
_DATA = Path(__file__).with_name("error_codes.json")
_VALUE = "…"  # the placeholder of a value in a template
_CODE = re.compile(r"PTE\d*", re.IGNORECASE)
_WIDTH = 100
_PAGE = "docs/reference/errors.md"
_PROGRAM = "pte"
_WARNING = "warning"
_OF_PACKAGES = ("link", "lower")  # kinds of action that also report config mistakes
_COMMAND = re.compile(r"(?<=[`'])doit(?= )")  # as written in remedies

_Facts = Mapping[str, Any]


def find_codes(text: str, kind: str = "") -> list[str]:
    """Return the code of each line of an error, or "" for a line without an entry.

    If no line has an entry, the first one gets the code of its group.

    Args:
        text: the error, without the prefix that the console adds.
        kind: the kind of the action that failed, such as `compile`; "" for a command line;
            `warning` for a warning, which has a code only if it has an entry.
    """
    lines = text.splitlines()
    codes = [_match(line) for line in lines]
    if lines and kind != _WARNING and not any(codes):
        codes[0] = _find_group(lines[0], kind)
    return codes


def find_code(text: str, kind: str = "") -> str:
    """Return the first code of an error."""
    return next(filter(None, find_codes(text, kind)), "")


def show_error(text: str, kind: str = "") -> str:
    """Return an error as a user sees it.

    Each line ends with its code, and commands start with the name of the running program.
    """
    lines = []
    codes = find_codes(text, kind)
    for line, code in zip(text.splitlines(), codes, strict=True):
        lines.append(f"{line} [{code}]" if code else line)
    shown = "\n".join(lines)
    if Path(sys.argv[0]).name == _PROGRAM:
        shown = _COMMAND.sub(_PROGRAM, shown)
    return shown


def count_letters(text: str) -> int:
    """Return the number of letters in a string."""
    return sum(character.isalpha() for character in text)


@cache
def read_errors() -> dict[str, _Facts]:
    """Return the facts of each error, by code."""
    return {facts["code"]: facts for facts in _read()["errors"]}


@cache
def read_groups() -> dict[str, _Facts]:
    """Return the facts of each group of errors, by code."""
    return {facts["code"]: facts for facts in _read()["groups"]}


@cache
def _read() -> dict[str, list[_Facts]]:
    data: dict[str, list[_Facts]] = json.loads(_DATA.read_text(encoding="utf-8"))
    return data


# Cached because reports quote the same error many times.
@lru_cache(maxsize=256)
def _match(line: str) -> str:
    """Return the code of the entry that shares the most letters with a line, or "" if none does."""
    best = ""
    most = (0, 0)
    for code, facts in read_errors().items():
        for parts in facts["templates"]:
            held = "".join(part for part in parts if holds(line, part))
            score = count_letters(held), len(held)
            if score > most:
                best, most = code, score
    return best


def holds(line: str, template: str) -> bool:
    """Return whether a line contains the fixed words of a template, in order."""
    start = 0
    for words in template.split(_VALUE):
        start = line.find(words, start)
        if start < 0:
            return False
        start += len(words)
    return True


def _find_group(line: str, kind: str) -> str:
    """Return the code of the group that an error without an entry belongs to."""
    groups = read_groups()
    of_kind = [code for code, facts in groups.items() if kind in facts["kinds"]]
    of_place = [
        code
        for code, facts in groups.items()
        if line.startswith(tuple(facts["places"]))
    ]
    if kind in _OF_PACKAGES:
        return next(iter((*of_place, *of_kind)), "PTE700")
    return next(iter((*of_kind, *of_place)), "PTE700")


# The page of a code


def describe_code(word: str) -> list[str] | None:
    """Return the lines of `doit help PTE101`.

    Any word that doesn't resemble a code gives None. Raises PipelineError, with the closest code,
    if no error has the code.
    """
    if _CODE.fullmatch(word):
        return list(_describe(word.upper()))
    return None


def _describe(code: str) -> Iterator[str]:
    facts = read_errors().get(code) or read_groups().get(code)
    if facts is None:
        codes = sorted({*read_errors(), *read_groups()})
        longer = [known for known in codes if known.startswith(code)]
        near = longer or difflib.get_close_matches(code, codes, n=1, cutoff=0.0)
        raise PipelineError(
            f"no error has the code {code}; did you mean {near[0]}? All are in {_PAGE}"
        )
    yield f"{code}: {facts['title']}"
    if message := facts.get("message"):
        yield ""
        yield from textwrap.wrap(f"{message} [{code}]", _WIDTH)
    yield ""
    yield from textwrap.wrap(f"Cause: {facts['cause']}", _WIDTH)
    yield ""
    yield from textwrap.wrap(f"Remedy: {facts['remedy']}", _WIDTH)
    yield ""
    yield f"more: {_PAGE}#{code.lower()}"
