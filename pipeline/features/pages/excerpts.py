"""The lines of models and configs that a record names, shown in the page itself.

So a link to a line works wherever the page is opened, as on a phone or among a CI job's artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from urllib.parse import quote

from pipeline.report.elements import Json
from pipeline.report.quoted_files import is_inside, named_lines
from pipeline.store.source_line import SourceLine

_AROUND = 2  # lines before and after


# A line of a file: its number, its text, and its id if the record names the line, or else "".
ExcerptLine = tuple[int, str, str]


# A file of the workspace; the link from the page to it, "" for one outside of the workspace; its
# parts, between which lines are left out; and whether it has changed since the record was made: of
# such a file, only what the record quotes is shown.
Excerpt = tuple[str, str, Sequence[Sequence[ExcerptLine]], bool]


def excerpts(report: Json, sources: Mapping[str, str | None]) -> list[Excerpt]:
    """Return the named lines of each file with those around them.

    Args:
        sources: texts of files by their paths in the workspace, None for one that is not what it
            was. Of these and of others, only what the record quotes is shown.
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
    """Yield runs of lines. A named line that the text lacks shows what the record quotes."""
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
