"""The table of trends on the page over all packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pipeline.report.cells import figure, name
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import decibel, milliseconds, percent
from pipeline.report.packages import Entry
from pipeline.store.sizes import human_size

_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "size": ("size", human_size),
    "nodes delegated": ("delegated", percent),
    "worst SQNR": ("sqnr_db", decibel),
    "slowest method": ("latency", milliseconds),
}


def section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section with the trends of the packages that have several revisions."""
    rows: list[Row] = []
    for entry in entries:
        if len(entry.history) > 1:
            package = name(entry.package, href=entry.page)
            rows.append({"package": package, **dict(_describe(entry.history))})
    table = DataTable("trends", "Revisions in order, the current one last", rows)
    return ReportSection("trends", "Trends", table)


def _describe(history: Sequence[Json]) -> Iterator[tuple[str, Cell | str]]:
    for title, (field, style) in _COLUMNS.items():
        yield title, _make_cell(history, field, style)
    first = datetime.fromtimestamp(history[0]["time"], UTC)
    since = f"since {history[0]['commit'][:8]}, {first:%Y-%m-%d}"
    yield "revisions", figure(len(history), note=since)


def _make_cell(
    history: Sequence[Json], field: str, style: Callable[[float], str]
) -> Cell:
    """Return the last revision's figure, with a line and the previous figure that differs."""
    values = [row[field] for row in history]
    if field == "latency":
        # Latencies of another machine don't compare with this one's.
        processor = history[-1]["processor"]
        values = [
            row[field] if row["processor"] == processor else None for row in history
        ]
    now = values[-1]
    if now is None:
        return figure(None)
    note = ""
    for row, value in zip(reversed(history), reversed(values), strict=True):
        if value is not None and style(value) != style(now):
            note = f"{style(value)} at {row['commit'][:8]}"
            break
    return replace(figure(now, style, note=note), spark=_draw_line(values))


def _draw_line(values: Sequence[float | None]) -> str:
    """Return the points of a line through values, within a box of 100 by 20.

    Returns "" for fewer than two values.
    """
    places = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(places) < 2:
        return ""
    numbers = [value for _, value in places]
    least = min(numbers)
    extent = max(numbers) - least
    points: list[str] = []
    for place, value in places:
        x = 100 * place / (len(values) - 1)
        share = (value - least) / extent if extent else 0.5
        points.append(f"{x:.4g},{18 - 16 * share:.4g}")
    return " ".join(points)
