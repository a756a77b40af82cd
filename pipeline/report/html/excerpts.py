"""The lines of models and configs that a page speaks of, shown in the page itself: so a link to
one works wherever the page is opened, a phone or a CI server's list of artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from pipeline.report.formatting import Place, place

Json = Mapping[str, Any]

_AROUND = 2  # lines before and after


@dataclass(frozen=True)
class Line:
    """`named`: the page speaks of it. `anchor` is empty for others."""

    number: int
    text: str
    named: bool
    anchor: str = ""


@dataclass(frozen=True)
class Excerpt:
    """Parts of a file of the workspace; between two of them lines are left out. `href` leads from
    the page to the file, where it stands in its workspace."""

    file: str
    href: str
    parts: Sequence[Sequence[Line]]


def places(report: Json) -> list[Place]:
    """All lines of files that a record speaks of, sorted, each once."""
    told = [
        *(gate.get("place", "") for gate in report.get("gates") or ()),
        *report.get("places", {}).values(),
        *(c["line"] for method in report["methods"] for c in method.get("culprits") or ()),
        *(
            left.get("line", "")
            for counts in report.get("delegation", {}).values()
            for left in counts.get("left", ())
        ),
    ]
    found = {(p.file, p.line): p for p in map(place, told) if p is not None}
    return [found[key] for key in sorted(found)]


def files(report: Json) -> list[str]:
    """The files that `excerpts` shows lines of, by their paths in the workspace."""
    named = dict.fromkeys(place.file for place in places(report))
    return [file for file in named if _inside(file)]


def _inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def excerpts(report: Json, sources: Mapping[str, str], root: str = "../../") -> list[Excerpt]:
    """Of files without text, only the lines that the record quotes.

    Args:
        sources: texts of files by their paths in the workspace.
        root: leads from the page to the workspace.
    """
    by_file: dict[str, list[Place]] = {}
    for each in places(report):
        by_file.setdefault(each.file, []).append(each)
    return [
        Excerpt(
            file,
            f"{root}{quote(file)}#L{named[0].line}" if _inside(file) else "",
            list(_parts(named, sources.get(file))),
        )
        for file, named in by_file.items()
    ]


def _parts(named: Sequence[Place], text: str | None) -> Iterator[list[Line]]:
    if text is None:
        for place in named:
            yield [Line(place.line, place.code, True, place.anchor)]
        return
    lines = text.splitlines()
    anchors = {place.line: place for place in named}
    shown = sorted(
        {
            number
            for line in anchors
            for number in range(line - _AROUND, line + _AROUND + 1)
            if 1 <= number <= len(lines) or number in anchors
        }
    )
    for run in _runs(shown):
        yield [
            Line(
                number,
                lines[number - 1] if number <= len(lines) else anchors[number].code,
                number in anchors,
                anchors[number].anchor if number in anchors else "",
            )
            for number in run
        ]


def _runs(numbers: Iterable[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run
