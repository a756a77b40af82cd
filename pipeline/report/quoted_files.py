"""The files of the workspace that a record names lines of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pipeline.report.elements import Json
from pipeline.report.formatting import Place, parse_place
from pipeline.store.digest import hash_bytes

_LARGEST_SOURCE = 1 << 22  # bytes; a page shows a few lines of it


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
        if place.file in digests and place.file in allowed and is_inside(place.file):
            files[place.file] = digests[place.file]
    return files


def _settings(report: Json) -> list[str]:
    """Return the places that the config has, as texts."""
    gates = (gate.get("place", "") for gate in report.get("gates") or ())
    return [*gates, *report.get("places", {}).values()]


def is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def read_sources(root: Path, report: Json) -> dict[str, str | None]:
    """Read the files below `root` whose lines the reports of a package quote, by their names; None
    for one that is not what it was when the record was made, whose lines may have moved."""
    texts: dict[str, str | None] = {}
    for name, digest in named_files(report).items():
        path = root / name
        with suppress(OSError, UnicodeDecodeError):
            # And no link to another file.
            is_itself = path.resolve() == root.resolve() / name
            if is_itself and path.is_file() and path.stat().st_size <= _LARGEST_SOURCE:
                content = path.read_bytes()
                texts[name] = (
                    content.decode() if hash_bytes(content) == digest else None
                )
    return texts
