"""Makes table cells, one function per kind of content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.report.elements import Cell
from pipeline.report.formatting import NOTHING, sort_key
from pipeline.store.source_line import parse_source_line


def name(text: str, note: str = "", href: str = "") -> Cell:
    return Cell(text, kind="name", note=note, href=href)


def code(text: str, note: str = "") -> Cell:
    return Cell(text or NOTHING, kind="code" if text else "soft", note=note)


def text(value: str | None, kind: str = "") -> Cell:
    return Cell(value or NOTHING, kind=kind if value else "soft")


def names(values: Iterable[str]) -> Cell:
    return text(", ".join(values))


def figure(
    value: float | str | None, style: Callable[[Any], str] = "{:,}".format, **more: Any
) -> Cell:
    """Return the cell of a figure, formatted with `style`; an undefined figure sorts last."""
    if value is None:
        return Cell(NOTHING, sort_key(None), kind="soft")
    return Cell(style(value), sort_key(value), **more)


_KINDS: Mapping[str, str] = {"passed": "good", "failed": "bad", "not judged": "warn"}


def verdict_cell(verdict: str, note: str = "") -> Cell:
    """Return the cell of a verdict in its colour: green, red, amber, or grey if it was not run."""
    return Cell(verdict, kind=_KINDS.get(verdict, "soft"), note=note)


def verdict(ok: bool, instead: str = "") -> Cell:
    """Return the cell of a check; `instead` replaces "passed" if that was not observed."""
    return verdict_cell("failed" if not ok else instead or "passed")


def source(recorded: str | None) -> Cell:
    """Return the cell of a recorded line of a model or config, linked to its place on the page."""
    line = parse_source_line(recorded)
    if line is None:
        return code(recorded or "")
    if not line.code:
        return Cell(
            line.where,
            href=f"#{line.where}",
            kind="code",
        )
    note = ", in ".join(filter(None, (line.where, line.function)))
    return Cell(
        line.code,
        href=f"#{line.where}",
        kind="line-of",
        note=note,
    )
