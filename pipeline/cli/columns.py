"""Formats rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from pipeline.store.visible import one_line

_LONGEST = 128  # characters; longer names are invalid and must not widen a column
_CUT = 40


def columns(
    rows: Iterable[Sequence[str]], right: Collection[int] = (), rule: bool = False
) -> Iterator[str]:
    """Yield rows as lines, with each column as wide as its widest cell.

    Names that are too long for any package are cut, except in the last column, which may hold
    sentences.

    Args:
        right: indices of the columns to align to the right.
        rule: whether to draw a line under the first row.
    """
    lines = []
    for row in rows:
        *names, last = map(one_line, row)
        lines.append([*map(_cut_refused, names), last])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = []
        for column, width in enumerate(widths):
            cell = line[column]
            cells.append(cell.rjust(width) if column in right else cell.ljust(width))
        yield "  ".join(cells).rstrip()
        if rule and number == 0:
            yield "  ".join("-" * width for width in widths)


def _cut_refused(name: str) -> str:
    return name if len(name) <= _LONGEST else cut_middle(name, _CUT)


def cut_middle(name: str, room: int) -> str:
    """Shorten a name in its middle, since packages of a matrix differ at the end."""
    if len(name) <= room:
        return name
    end = (room - 3) // 2
    return f"{name[: room - 3 - end]}...{name[len(name) - end :]}"
