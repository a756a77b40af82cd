"""The lines of models and configs that a record names, shown in the page itself.

So a link to a line works wherever the page is opened, as on a phone or among a CI job's artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

from pipeline.report.elements import Json
from pipeline.report.formatting import Place, parse_place

_AROUND = 2  # lines before and after


class Line(NamedTuple):
    """A line of a file; `anchor` is its id if the record names the line, or else empty."""

    number: int
    text: str
    anchor: str = ""


class Excerpt(NamedTuple):
    """Parts of a file of the workspace, between which lines are left out.

    `href` leads from the page to the file in its workspace; it is empty for a file outside of it.
    Of one that is `changed` since the record was made, only what the record quotes is shown.
    """

    file: str
    href: str
    parts: Sequence[Sequence[Line]]
    changed: bool


def named_places(report: Json) -> list[Place]:
    """Return all lines of files that a record names, sorted, each once."""
    places: dict[tuple[str, int], Place] = {}
    for text in _list_lines(report):
        place = parse_place(text)
        if place is not None:
            places[place.file, place.line] = place
    return [places[key] for key in sorted(places)]


def _list_lines(report: Json) -> Iterator[str]:
    """Yield the lines that a record names, as texts."""
    yield from _settings(report)
    for method in report["methods"]:
        for culprit in method.get("culprits") or ():
            yield culprit["line"]
    for field in ("narrowed", "warnings"):
        for records in (report.get(field) or {}).values():
            yield from (record["line"] for record in records)
    for delegation in (report.get("delegation") or {}).values():
        yield from (call.get("line", "") for call in delegation.get("left", ()))


def named_files(report: Json) -> dict[str, str]:
    """Return the files of the workspace that a record names lines of, by their paths there, with
    the digests that they had: those of its config, and Python files that its programs were
    exported from.

    A trace can name any file, so what a program names and no export read is not among them.
    """
    digests = report.get("sources", {})
    settings = filter(None, map(parse_place, _settings(report)))
    allowed = {place.file for place in settings}
    allowed |= {file for file in digests if file.endswith(".py")}
    files: dict[str, str] = {}
    for place in named_places(report):
        if place.file in digests and place.file in allowed and _inside(place.file):
            files[place.file] = digests[place.file]
    return files


def _settings(report: Json) -> list[str]:
    """Return the places that the config has, as texts."""
    gates = (gate.get("place", "") for gate in report.get("gates") or ())
    return [*gates, *report.get("places", {}).values()]


def _inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def excerpts(report: Json, sources: Mapping[str, str | None]) -> list[Excerpt]:
    """Return the named lines of each file with those around them.

    Args:
        sources: texts of files by their paths in the workspace, None for one that is not what it
            was. Of these and of others, only what the record quotes is shown.
    """
    quoted: list[Excerpt] = []
    for file, places in groupby(named_places(report), key=lambda place: place.file):
        named = list(places)
        href = ""
        if _inside(file):
            href = f"../../{quote(file)}#L{named[0].line}"
        text = sources.get(file, "")
        parts = list(_parts(named, text or ""))
        quoted.append(Excerpt(file, href, parts, changed=text is None))
    return quoted


def _parts(named: Sequence[Place], text: str) -> Iterator[list[Line]]:
    """Yield runs of lines. A named line that the text lacks shows what the record quotes."""
    lines = dict(enumerate(text.splitlines(), 1))
    shown: dict[int, Line] = {}
    for place in named:
        for number in range(place.line - _AROUND, place.line + _AROUND + 1):
            if number in lines:
                shown[number] = Line(number, lines[number])
    for place in named:
        content = lines.get(place.line, place.code)
        shown[place.line] = Line(place.line, content, place.anchor)
    run: list[Line] = []
    for number in sorted(shown):
        if run and number > run[-1].number + 1:
            yield run
            run = []
        run.append(shown[number])
    if run:
        yield run
