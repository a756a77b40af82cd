"""Excerpts of the models and configs whose lines a record names, shown in the page itself.

This way a link to a line works wherever the page is opened: on a phone, or among a CI job's
artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from urllib.parse import quote

from pipeline.report.elements import Json
from pipeline.report.quoted_files import is_inside, named_lines
from pipeline.store.source_line import SourceLine

_AROUND = 2  # lines before and after


# A line of a file: its number, its text, and its id ("" unless the record names the line).
ExcerptLine = tuple[int, str, str]


# A file of the workspace: its path; the link to it from the page ("" if it lies outside the
# workspace); its runs of consecutive lines; and whether it has changed since the record was made.
# If it has, only the lines quoted in the record are shown.
Excerpt = tuple[str, str, Sequence[Sequence[ExcerptLine]], bool]


def excerpts(report: Json, sources: Mapping[str, str | None]) -> list[Excerpt]:
    """Return the lines that a record names, grouped by file, with the lines around them.

    Args:
        sources: contents of files by path in the workspace; None for a file that has changed. For
            these, and for files that are absent, only the lines quoted in the record are shown.
    """
    quoted: list[Excerpt] = []
    for file, lines in groupby(named_lines(report), key=lambda line: line.file):
        named = list(lines)
        href = ""
        if is_inside(file):
            href = f"../../{quote(file)}#L{named[0].line}"
        text = sources.get(file, "")
        parts = list(_parts(named, text or ""))
        quoted.append((file, href, parts, text is None))
    return quoted


def _parts(named: Sequence[SourceLine], text: str) -> Iterator[list[ExcerptLine]]:
    """Yield runs of consecutive lines.

    If the text lacks a named line, the record's quote of it is shown.
    """
    lines = dict(enumerate(text.splitlines(), 1))
    shown: dict[int, ExcerptLine] = {}
    for line in named:
        for number in range(line.line - _AROUND, line.line + _AROUND + 1):
            if number in lines:
                shown[number] = (number, lines[number], "")
    for line in named:
        content = lines.get(line.line, line.code)
        shown[line.line] = (line.line, content, line.where)
    run: list[ExcerptLine] = []
    for number in sorted(shown):
        if run and number > run[-1][0] + 1:
            yield run
            run = []
        run.append(shown[number])
    if run:
        yield run
