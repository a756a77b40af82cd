"""Parts of a report before they are rendered: sections of tables, charts and paragraphs.

Sections make them once; `markdown` and `html` render them. Nothing here knows of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pipeline.moments import call_all

Json = Mapping[str, Any]
MOST_ROWS = 400  # of a table in a page, which stays below a megabyte
WIDTH = 288  # of a drawing on the narrowest page, in pixels


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    `sort` is the number by which a column of figures is sorted; texts sort as they are. `kind` is
    a class of the style (name, code, line-of, whole, wide, soft, good, bad). `note` is a smaller
    line below, `href` a link within the page or to a file beside it, `bar` a share drawn below,
    `spark` the points of a line drawn below, within a box of 100 by 20.
    """

    text: str
    sort: float | None = None
    href: str = ""
    kind: str = ""
    note: str = ""
    bar: float | None = None
    spark: str = ""


Row = Mapping[str, Cell | str]


@dataclass(frozen=True)
class DataTable:
    """A table; each row maps the same titles of columns to cells.

    Markdown shows the first `brief` rows, which should be those that count most. A `folded` table
    is opened by whoever wants to see it.
    """

    name: str
    title: str
    rows: Sequence[Row]
    brief: int = 100
    folded: bool = False

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])

    @property
    def cells(self) -> list[list[Cell]]:
        return [
            [cell if isinstance(cell, Cell) else Cell(cell) for cell in row.values()]
            for row in self.rows
        ]

    @property
    def numeric(self) -> list[bool]:
        """Return for each column if it holds figures, which are aligned right."""
        columns = zip(*self.cells, strict=True)
        return [any(cell.sort is not None for cell in column) for column in columns]

    def cut(self, most: int) -> DataTable:
        """Return the table with its first rows; its title says how many there are."""
        if len(self.rows) <= most:
            return self
        title = f"{self.title} (the first {most} of {len(self.rows):,}; report.json has all)"
        return replace(self, title=title, rows=self.rows[:most])


@dataclass(frozen=True)
class Shape:
    """An element of SVG.

    `title` is its tooltip and its name for screen readers; `text` is what it writes.
    """

    tag: str
    attributes: Mapping[str, str]
    title: str = ""
    text: str = ""


# The height of a chart in pixels, and its shapes, from the one that lies below all others.
Drawing = tuple[float, Sequence[Shape]]


@dataclass(frozen=True)
class Chart:
    """A chart with its caption and legend (names and colours). Markdown leaves it out.

    `label` says what the picture shows; `kind` is how `data` are drawn: as bars, treemap, errors,
    latency or scatter (pipeline/features/charts/draw.py); `links` maps titles of shapes to where
    they lead.
    `views` are other charts of the same things, among which the page switches by their `view`.
    """

    title: str
    about: str
    legend: Sequence[tuple[str, str]]
    label: str
    kind: str
    data: Json
    links: Mapping[str, str] = field(default_factory=dict)
    view: str = ""
    views: Sequence[Chart] = ()

    @cached_property
    def drawing(self) -> Drawing | None:
        """Return what a feature draws, None where none draws such charts."""
        for drawing in call_all("draw_chart", self.kind, self.data):
            if drawing is not None:
                return drawing
        return None

    def __bool__(self) -> bool:
        return self.drawing is not None


@dataclass(frozen=True)
class Timeline:
    """Lanes of actions by their names, with caption and legend. Markdown leaves it out.

    It is boxes of the page, whose texts are cut where a box ends, which those of a picture are not.

    Attributes:
        lanes: by name, the bars of a lane: each with its `start` and `length`, as shares of the
            whole; `name`, `colour` and `description`; `href`, where it leads; `ok`; `framed` if it
            is on the longest chain; `wide_only` if its name fits into it on large screens alone.
        ticks: places on the axis, as shares of the whole, with what they are called.
    """

    title: str
    about: str
    legend: Sequence[tuple[str, str]]
    label: str
    lanes: Mapping[str, Sequence[Json]]
    ticks: Sequence[tuple[float, str]]


class ReportSection:
    """A section of a report. Parts that are empty or None are dropped; strings are paragraphs."""

    def __init__(
        self, name: str, title: str, *parts: DataTable | Chart | Timeline | str | None
    ) -> None:
        self.name = name
        self.title = title
        self.parts = [part for part in parts if part]
