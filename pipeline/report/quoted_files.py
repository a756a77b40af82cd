"""The workspace files from which a record quotes lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pipeline.report.elements import Json
from pipeline.store.digest import hash_bytes
from pipeline.store.source_line import SourceLine, parse_source_line

_LARGEST_SOURCE = 1 << 22  # bytes; a page shows only a few lines


def named_lines(report: Json) -> list[SourceLine]:
    """Return all file lines that a record names, sorted and without duplicates."""
    lines: dict[tuple[str, int], SourceLine] = {}
    for text in _list_lines(report):
        line = parse_source_line(text)
        if line is not None:
            lines[line.file, line.line] = line
    return [lines[key] for key in sorted(lines)]


def _list_lines(report: Json) -> Iterator[str]:
    """Yield the lines that a record names, as strings."""
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
    """Return the workspace files from which a record names lines, by path, with their digests.

    These are the files of its config, and the Python files that its programs were exported from.
    The digests are from the time of the record. A trace can name any file, so files that a program
    names but no export read are left out.
    """
    digests = report.get("sources", {})
    settings = filter(None, map(parse_source_line, _settings(report)))
    allowed = {setting.file for setting in settings}
    allowed |= {file for file in digests if file.endswith(".py")}
    return {
        line.file: digests[line.file]
        for line in named_lines(report)
        if line.file in digests and line.file in allowed and is_inside(line.file)
    }


def _settings(report: Json) -> list[str]:
    """Return the places of the config's settings, as strings."""
    gates = (gate.get("place", "") for gate in report.get("gates") or ())
    return [*gates, *report.get("places", {}).values()]


def is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return not path.is_absolute() and ".." not in path.parts


def read_sources(root: Path, report: Json) -> dict[str, str | None]:
    """Read the files below `root` whose lines a package's reports quote, by name.

    The text of a file that changed since the record was made is None, as its lines may have moved.
    """
    texts: dict[str, str | None] = {}
    for name, digest in named_files(report).items():
        path = root / name
        with suppress(OSError, UnicodeDecodeError):
            # Skips links to other files.
            is_itself = path.resolve() == root.resolve() / name
            if is_itself and path.is_file() and path.stat().st_size <= _LARGEST_SOURCE:
                content = path.read_bytes()
                texts[name] = (
                    content.decode() if hash_bytes(content) == digest else None
                )
    return texts
