"""Explains mistakes in YAML that libyaml reports vaguely, or in another line than they are in.

These are merge conflicts, tabs, wrong indentation, quotes that aren't closed, and keys without
their colons.
"""

from __future__ import annotations

import re

import yaml

from pipeline.store.errors import shown

_COLON = re.compile(r":(?:\s|$)")
_CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)  # a line that Git writes
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def explain_syntax(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str, str]:
    """Explain a mistake in YAML: the number of its line, from 1, the fault, and the remedy.

    For a mistake that it doesn't recognize, the number is 0 and the strings are empty.
    """
    if conflict := _CONFLICT.search(text):
        number = text.count("\n", 0, conflict.start()) + 1
        remedy = (
            "keep the right lines, and remove the markers <<<<<<<, ======= and >>>>>>>"
        )
        return number, "contains a merge conflict", remedy
    mark = error.problem_mark or error.context_mark
    if mark and text[mark.index : mark.index + 1] == "\t":
        return mark.line + 1, "contains a tab", "indent YAML with spaces"
    if error.context == "while scanning a quoted scalar" and error.context_mark:
        opened = error.context_mark.line + 1
        return opened, "has a quote that is not closed", "close it, or remove it"
    if mark and _is_misaligned(text, error, mark):
        fault = "is indented differently from the lines above it"
        return mark.line + 1, fault, "align it with the other keys of its section"
    number = find_missing_colon(text, error)
    if not number:
        return 0, "", ""
    line = text.splitlines()[number - 1]
    if f":{_NO_BREAK_SPACE}" in line:
        return number, "contains a no-break space", "replace it with an ordinary space"
    fault = f"{shown(line.strip())} lacks a colon"
    remedy = "write `key: value`, with the space, or `key:` above what it holds"
    return number, fault, remedy


def _is_misaligned(text: str, error: yaml.MarkedYAMLError, mark: yaml.Mark) -> bool:
    """Return whether libyaml stopped at the start of an indented line, within a block."""
    line = text.splitlines()[mark.line : mark.line + 1]
    is_start = mark.column > 0 and not "".join(line)[: mark.column].strip()
    return is_start and str(error.context).startswith("while parsing a block ")


def find_missing_colon(text: str, error: yaml.MarkedYAMLError) -> int:
    """Return the number of the line, from 1, whose key lacks its colon, or 0 for another mistake.

    YAML continues such a key on the next line as plain text, so libyaml reports the colon there.
    """
    if error.context == "while scanning a simple key" and error.context_mark:
        return error.context_mark.line + 1
    mark = error.problem_mark
    if not mark or not str(error.problem).startswith("mapping values"):
        return 0
    lines = text.splitlines()
    if _COLON.search(lines[mark.line][: mark.column]):
        return 0
    for number in range(mark.line, 0, -1):
        line, _, _ = lines[number - 1].partition("#")
        if line.strip():
            return 0 if _COLON.search(line) else number
    return 0
