"""Tables of a page: what stands in each cell, by what it is sorted, and where it leads to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.report import formatting as figures
from pipeline.report.formatting import Place

MOST_ROWS = 400  # of one table; a page stays below a megabyte


@dataclass(frozen=True)
class Cell:
    """`sort` orders figures; texts are their own order. `kind` is a class of the style, `note` a
    smaller line beneath, `href` where it leads to, `bar` a share drawn behind."""

    text: str
    sort: float | None = None
    href: str = ""
    kind: str = ""
    note: str = ""
    note_href: str = ""
    bar: float | None = None


@dataclass(frozen=True)
class Table:
    """`columns` are titles; those whose number is in `right` hold figures."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    right: frozenset[int] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        return bool(self.rows)


def table(
    name: str,
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    right: Iterable[int] = (),
) -> Table:
    """Rows beyond `MOST_ROWS` are left out, and the caption says so: the first ones should be those
    that count most."""
    rows = list(rows)
    if len(rows) > MOST_ROWS:
        caption += f" (the first {MOST_ROWS} of {len(rows):,}; report.json has all)"
    return Table(name, caption, columns, rows[:MOST_ROWS], frozenset(right))


def code(text: str, note: str = "") -> Cell:
    return Cell(text or figures.NOTHING, kind="code" if text else "soft", note=note)


def figure(value: float | str | None, text: str, kind: str = "") -> Cell:
    return Cell(text, sort=figures.number(value), kind=kind)


def verdict(ok: bool, not_run: bool = False) -> Cell:
    if not ok:
        return Cell("failed", kind="bad")
    return Cell("not run", kind="soft") if not_run else Cell("passed", kind="good")


def source(told: str | None) -> Cell:
    """A line of source or config, as it stands in a record, linked to where the page shows it."""
    found = figures.place(told)
    if found is None:
        return Cell(told or figures.NOTHING, kind="code" if told else "soft")
    return Cell(
        found.code or found.anchor,
        href=link(found),
        kind="line-of" if found.code else "code",
        note=f"{found.anchor}, {found.function}" if found.code and found.function else "",
    )


def link(place: Place) -> str:
    return f"#{place.anchor}"
