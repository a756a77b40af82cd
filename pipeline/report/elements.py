"""The parts of a report before rendering: sections of tables, charts and paragraphs.

Sections are built once; `markdown` and `html` render them. This module knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pipeline.moments import call_all

Json = Mapping[str, Any]
MOST_ROWS = 400  # in a page's table, to keep the page below a megabyte
WIDTH = 288  # pixels, of a drawing on the narrowest page


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        sort: the number by which a column of figures is sorted; strings are sorted as they are.
        href: a link within the page, or to a file next to it.
        kind: a class of the style (name, code, line-of, whole, wide, soft, good, bad).
        note: a smaller line below.
        bar: a share, drawn below.
        spark: the points of a line drawn below, within a box of 100 by 20.
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
    """A table; each row maps column titles, the same in all rows, to cells.

    Markdown shows the first `brief` rows, which should be the most important ones. A `folded` table
    is collapsed until the reader opens it.
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
        """For each column, whether it holds figures, which are right-aligned."""
        columns = zip(*self.cells, strict=True)
        return [any(cell.sort is not None for cell in column) for column in columns]

    def cut(self, most: int) -> DataTable:
        """Return the table with its first rows only; its title says how many there are in all."""
        if len(self.rows) <= most:
            return self
        title = f"{self.title} (the first {most} of {len(self.rows):,}; report.json has all)"
        return replace(self, title=title, rows=self.rows[:most])


@dataclass(frozen=True)
class Shape:
    """An SVG element.

    `title` is its tooltip and its name for screen readers; `text` is its text content.
    """

    tag: str
    attributes: Mapping[str, str]
    title: str = ""
    text: str = ""


# The height of a chart in pixels, and its shapes from back to front.
Drawing = tuple[float, Sequence[Shape]]


@dataclass(frozen=True)
class Chart:
    """A chart with its caption and legend. Markdown omits it.

    Attributes:
        legend: names and colours.
        label: describes the picture.
        kind: how to draw `data`: as bars, treemap, errors, latency or scatter
            (pipeline/features/charts/draw.py).
        links: link targets, by titles of shapes.
        view: the name of this chart among `views`.
        views: other charts of the same data, between which the page switches.
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
        """The drawing that a feature makes, or None if no feature draws such charts."""
        for drawing in call_all("draw_chart", self.kind, self.data):
            if drawing is not None:
                return drawing
        return None

    def __bool__(self) -> bool:
        return self.drawing is not None


@dataclass(frozen=True)
class Timeline:
    """Lanes of actions by name, with caption and legend. Markdown omits it.

    It consists of boxes on the page, whose text is cut at their edge, unlike the text of a picture.

    Attributes:
        lanes: by name, the bars of a lane, each with `start` and `length`, as shares of the whole;
            `name`, `colour` and `description`; `href`, the link target; `ok`; `framed` if it is on
            the longest chain; `wide_only` if its name fits only on large screens.
        ticks: positions on the axis, as shares of the whole, with their labels.
    """

    title: str
    about: str
    legend: Sequence[tuple[str, str]]
    label: str
    lanes: Mapping[str, Sequence[Json]]
    ticks: Sequence[tuple[float, str]]


class ReportSection:
    """A section of a report. Empty parts and None are dropped; strings are paragraphs."""

    def __init__(
        self, name: str, title: str, *parts: DataTable | Chart | Timeline | str | None
    ) -> None:
        self.name = name
        self.title = title
        self.parts = [part for part in parts if part]
