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
    counts = (report.get("delegation") or {}).values()
    texts = [
        *_settings(report),
        *(c["line"] for method in report["methods"] for c in method.get("culprits") or ()),
        *(n["line"] for sizes in (report.get("narrowed") or {}).values() for n in sizes),
        *(w["line"] for warnings in (report.get("warnings") or {}).values() for w in warnings),
        *(call.get("line", "") for delegation in counts for call in delegation.get("left", ())),
    ]
    places = {(p.file, p.line): p for p in map(parse_place, texts) if p is not None}
    return [places[key] for key in sorted(places)]


def named_files(report: Json) -> dict[str, str]:
    """Return the files of the workspace that a record names lines of, by their paths there, with
    the digests that they had: those of its config, and Python files that its programs were
    exported from.

    A trace can name any file, so what a program names and no export read is not among them.
    """
    digests = report.get("sources", {})
    settings = filter(None, map(parse_place, _settings(report)))
    allowed = {place.file for place in settings}
    allowed |= {name for name in digests if name.endswith(".py")}
    files = dict.fromkeys(place.file for place in named_places(report))
    return {f: digests[f] for f in files if f in digests and f in allowed and _inside(f)}


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
    shown_files = []
    for file, places in groupby(named_places(report), key=lambda place: place.file):
        named = list(places)
        href = f"../../{quote(file)}#L{named[0].line}" if _inside(file) else ""
        text = sources.get(file, "")
        shown_files.append(Excerpt(file, href, list(_parts(named, text or "")), text is None))
    return shown_files


def _parts(named: Sequence[Place], text: str) -> Iterator[list[Line]]:
    """Yield runs of lines. A named line that the text lacks shows what the record quotes."""
    lines = dict(enumerate(text.splitlines(), 1))
    places = {place.line: place for place in named}
    around = {near for line in places for near in range(line - _AROUND, line + _AROUND + 1)}
    shown = {number: Line(number, lines[number]) for number in around & lines.keys()}
    for line, place in places.items():
        shown[line] = Line(line, lines.get(line, place.code), place.anchor)
    for _, run in groupby(enumerate(sorted(shown)), key=lambda pair: pair[1] - pair[0]):
        yield [shown[number] for _, number in run]
