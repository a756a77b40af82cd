"""Rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from pipeline.store.visible import one_line


def columns(
    rows: Iterable[Sequence[str]], right: Collection[int] = (), rule: bool = False
) -> Iterator[str]:
    """Yield rows as lines with columns as wide as their widest cells.

    Args:
        right: the columns that are aligned to the right, by number.
        rule: draws a line under the first row.
    """
    lines = [list(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = []
        for column, width in enumerate(widths):
            cell = line[column]
            cells.append(cell.rjust(width) if column in right else cell.ljust(width))
        yield "  ".join(cells).rstrip()
        if rule and number == 0:
            yield "  ".join("-" * width for width in widths)


def cut_middle(name: str, room: int) -> str:
    """Shorten a name in its middle: packages of a matrix differ at the end."""
    if len(name) <= room:
        return name
    end = (room - 3) // 2
    return f"{name[: room - 3 - end]}...{name[len(name) - end :]}"
