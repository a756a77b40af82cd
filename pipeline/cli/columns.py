"""Rows of cells as lines of text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence


def columns(
    rows: Iterable[Sequence[str]], right: Collection[int] = (), rule: bool = False
) -> Iterator[str]:
    """Columns as wide as their widest cells, all but those numbered in `right` to the left; with a
    `rule` under the first row."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        if rule and number == 0:
            yield "  ".join("-" * width for width in widths)
