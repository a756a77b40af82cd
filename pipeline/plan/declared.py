"""The inputs that an exporter declares as `INPUTS`, read from its source without importing it."""

from __future__ import annotations

import ast
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.plan.places import Places
from pipeline.store.errors import SourceError, shown

_EXAMPLE = '["weights/**", "env:CHECKPOINT", "lib:mylib"]'


class Declared(NamedTuple):
    """The inputs that an exporter declares.

    Attributes:
        patterns: paths with wildcards, relative to the workspace, `~/...` or absolute. A folder
            stands for everything in it.
        environment, distributions: names of environment variables and of distributions.
    """

    patterns: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()

    def find(self, places: Places, where: str) -> list[str]:
        """Return the declared files, spelled as in records and sorted.

        Raises SourceError if a pattern matches nothing, or a distribution isn't installed; `where`
        is the exporter.
        """
        names: set[str] = set()
        wrong = []
        for pattern in self.patterns:
            matching = {places.spell(path) for path in self._files(places, pattern)}
            wrong += [] if matching else [f"{pattern!r} can't be an input"]
            names |= matching
        for name in self.distributions:
            try:
                distribution(name)
            except PackageNotFoundError:
                wrong.append(f"'lib:{name}' is not installed")
        if wrong:
            raise SourceError(f"{where}: INPUTS: {'; '.join(wrong)}")
        return sorted(names)

    def _files(self, places: Places, pattern: str) -> Iterator[str]:
        for match in glob.iglob(
            places.locate(pattern), recursive=True, include_hidden=True
        ):
            path = os.path.normpath(match)
            inside = [path]
            if os.path.isdir(path) and "*" not in pattern:
                inside = [p for kind, p in places.walk(path) if kind == "file"]
            yield from (p for p in inside if os.path.isfile(p) and places.wanted(p))

    def covers(self, places: Places, path: str, listing: bool = False) -> bool:
        """Return whether a declared file is at a path or, for a listing, may be in it."""
        parts = os.path.normpath(path).split(os.sep)
        named = []
        for pattern in self.patterns:
            named_parts = os.path.normpath(places.locate(pattern)).split(os.sep)
            named.append(named_parts)
            if not any("*" in part for part in named_parts):
                named.append([*named_parts, "**"])  # a folder
        return any(_matches(pattern, parts, listing) for pattern in named)


def _matches(pattern: Sequence[str], parts: Sequence[str], prefix: bool) -> bool:
    if not parts:
        return prefix or all(part == "**" for part in pattern)
    if not pattern:
        return False
    if pattern[0] == "**":
        if _matches(pattern[1:], parts, prefix):
            return True
        return _matches(pattern, parts[1:], prefix)
    if not fnmatchcase(parts[0], pattern[0]):
        return False
    return _matches(pattern[1:], parts[1:], prefix)


def read_declared(path: Path) -> dict[str, Any]:
    """Read the INPUTS from the source of an exporter, as JSON.

    `inputs` is None if the exporter has no INPUTS; `wrong` describes what is wrong with them, if
    anything.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # running the exporter reports the error
        return {"inputs": None, "wrong": ""}
    for node in tree.body:
        targets: Iterable[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id == "INPUTS":
                return _read_literal(node)
    return {"inputs": None, "wrong": ""}


def _is_list_of_texts(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(isinstance(member, str) for member in value)


def _read_literal(node: Any) -> dict[str, Any]:
    try:
        value: Any = None
        if not isinstance(node, ast.AugAssign):
            value = ast.literal_eval(node.value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        value = None
    if not _is_list_of_texts(value):
        wrong = f"INPUTS must be a list of string literals, such as {_EXAMPLE}"
        return {"inputs": None, "wrong": f"{node.lineno}: {wrong}"}
    wrong = "; ".join(filter(None, map(_check, value)))
    return {
        "inputs": list(value),
        "wrong": wrong and f"{node.lineno}: INPUTS: {wrong}",
    }


def _check(text: str) -> str:
    """Return what is wrong with a declared input, or "" if nothing is."""
    kind, colon, name = text.partition(":")
    if colon and kind == "env":
        if re.fullmatch(r"\w+", name):
            return ""
        return f"{shown(text)} is not the name of a variable"
    if colon and kind == "lib":
        sound = re.fullmatch(r"[A-Za-z0-9][\w.-]*", name)
        if sound:
            return ""
        return f"{shown(text)} is not the name of a distribution"
    if not text or "\0" in text:
        return f"{shown(text)} is not a path"
    return ""


def parse_declared(record: dict[str, Any], where: str) -> Declared | None:
    """Return the declared inputs in a record of `read_declared`, or None if there are no INPUTS.

    Raises SourceError if they are wrong; `where` is the exporter.
    """
    if record["wrong"]:
        raise SourceError(f"{where}:{record['wrong']}")
    if record["inputs"] is None:
        return None
    kinds: dict[str, list[str]] = {"": [], "env": [], "lib": []}
    for text in record["inputs"]:
        kind, _, name = text.partition(":")
        section, word = (kind, name) if kind in ("env", "lib") else ("", text)
        kinds[section].append(word)
    return Declared(*(tuple(dict.fromkeys(kinds[kind])) for kind in ("", "env", "lib")))
