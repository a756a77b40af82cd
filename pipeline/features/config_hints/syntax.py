"""Explains a tab in YAML, and a key without its colon, which libyaml reports in the next line."""

from __future__ import annotations

import re

import yaml

from pipeline.store.errors import shown

_COLON = re.compile(r":(?:\s|$)")


def explain_syntax(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str, str]:
    """Explain a mistake in YAML: the number of its line, from 1, the fault, and the remedy.

    It recognizes a line with a tab, and one without the colon after its key. For any other mistake,
    the number is 0 and the strings are empty.
    """
    mark = error.problem_mark or error.context_mark
    if mark and text[mark.index : mark.index + 1] == "\t":
        return mark.line + 1, "holds a tab", "YAML is indented by spaces"
    number = find_missing_colon(text, error)
    if not number:
        return 0, "", ""
    fault = f"{shown(text.splitlines()[number - 1].strip())} lacks a colon"
    remedy = "write `key: value`, with the space, or `key:` above what it holds"
    return number, fault, remedy


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
