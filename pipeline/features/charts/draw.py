"""Charts: shapes in pixels, computed from parts of records, which a page's template writes as SVG.

A chart is as wide as a phone; the page's style makes it larger on larger screens, and its colours
are variables of that style, so that a chart follows dark mode. The `title` of a shape becomes its
tooltip and its name for screen readers. Nothing is drawn by a library: the same record gives the
same bytes, without a script, and without a process that draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.features.charts.axes import (
    Axis,
    draw_axis,
    linear_axis,
    logarithmic_axis,
    percent_axis,
    spans_decades,
)
from pipeline.features.charts.shapes import (
    circle,
    cut_text,
    label,
    line,
    rectangle,
)
from pipeline.features.charts.treemap import Box, split_box
from pipeline.report.colours import colour_of
from pipeline.report.elements import WIDTH, Drawing, Json, Shape
from pipeline.store.sizes import human_size

# Pixels.
_LABEL = 20  # above a bar
_BAR = 18
_ROW = _LABEL + _BAR + 8
_LANE = 9  # between dots of one row
_MOST_LANES = 4  # of a row; further dots begin at its top again
_NARROWEST = 3  # of a piece of a bar
_ROOM_TO_GIVE = 40  # the width of a piece that can give some to others
_MARGIN = 2  # above and below a chart
_TREEMAP = 300  # the height of a treemap


def bars(
    rows: Mapping[str, Sequence[tuple[int, str, str]]],
    *,
    percents: bool = False,
    whole: int = 0,
) -> Drawing:
    """Draw bars of pieces.

    Args:
        rows: by their labels the pieces of each bar: amount, colour and description.
        percents: whether an axis below says which share of a bar is where.
        whole: the amount that takes the whole width; by default that of each bar.
    """
    shapes: list[Shape] = []
    for index, (name, pieces) in enumerate(rows.items()):
        top = index * _ROW
        shapes.append(label(name, top + _LABEL - 8))
        total = whole or sum(amount for amount, _, _ in pieces) or 1
        left = 0.0
        widths = _piece_widths([amount for amount, _, _ in pieces], total)
        for width, (_, colour, description) in zip(widths, pieces, strict=True):
            box = Box(left, top + _LABEL, width, _BAR)
            shapes.append(rectangle(box, colour, description))
            left += width
    return _chart(
        shapes,
        _ROW * len(rows),
        percent_axis() if percents else None,
    )


def _piece_widths(amounts: Sequence[int], total: int) -> list[float]:
    """Return the widths of pieces in pixels; a small one can be seen at the cost of the largest."""
    widths = [WIDTH * amount / total for amount in amounts]
    for place, amount in enumerate(amounts):
        lacking = _NARROWEST - widths[place]
        largest = max(range(len(widths)), key=lambda index: widths[index])
        if amount and lacking > 0 and widths[largest] > _ROOM_TO_GIVE:
            widths[place] += lacking
            widths[largest] -= lacking
    return widths


def treemap(segments: Sequence[Json]) -> Drawing:
    """Draw the bytes of a package as areas, by kind of segment.

    Args:
        segments: with `name`, `size`, `kind` and `description`.
    """
    kinds: dict[str, list[Json]] = {}
    for segment in sorted(segments, key=lambda segment: -segment["size"]):
        if segment["size"] > 0:
            kinds.setdefault(segment["kind"], []).append(segment)
    totals = {kind: sum(s["size"] for s in members) for kind, members in kinds.items()}
    ranked = sorted(kinds, key=lambda kind: -totals[kind])
    areas = split_box(
        [totals[kind] for kind in ranked],
        Box(0, 0, WIDTH, _TREEMAP),
    )
    shapes: list[Shape] = []
    for kind, area in zip(ranked, areas, strict=True):
        boxes = split_box([segment["size"] for segment in kinds[kind]], area)
        for segment, box in zip(kinds[kind], boxes, strict=True):
            shapes.append(rectangle(box, colour_of(kind), segment["description"]))
            shapes += _tile_texts(segment, box)
    return Drawing(_TREEMAP, shapes)


def _tile_texts(segment: Json, box: Box) -> list[Shape]:
    """Return the name and the size of a segment, where they fit into its tile."""
    texts = []
    name = ""
    if box.height > 20:
        name = _fit_name(segment["name"], box.width)
    if name:
        texts.append((name, 16))
    if box.height > 36 and box.width > 62:
        texts.append((human_size(segment["size"]), 31 if name else 16))
    return [
        label(text, box.top + below, box.left + 6, "var(--on-colour)", hidden=True)
        for text, below in texts
    ]


def _fit_name(name: str, width: float) -> str:
    """Return as much of a qualified name as fits into a tile, its last two parts first."""
    room = width - 12
    if cut_text(name, room) == name:
        return name
    short = ".".join(name.split(".")[-2:])
    cut = cut_text(short, room)
    if cut == short or width > 100:
        return cut
    return ""


def errors(dots: Sequence[Json]) -> Drawing:
    """Draw the errors of each output on each input set by their limits, on a logarithmic axis.

    Args:
        dots: with `row` (method and output), `ratio` (finite and positive), `ok` and `description`.
    """
    rows: dict[str, list[Json]] = {}
    for dot in dots:
        rows.setdefault(dot["row"], []).append(dot)
    ratios = [dot["ratio"] for dot in dots]
    axis = logarithmic_axis(
        min(*ratios, 0.1),
        max(*ratios, 10) * 1.0001,
    )
    shapes: list[Shape] = []
    top = 0.0
    for row, members in rows.items():
        shapes.append(label(row, top + 14))
        first = top + _LABEL + _LANE / 2
        for lane, dot in enumerate(members):
            colour = "var(--bad)"
            if dot["ok"]:
                colour = "var(--c0)"
            place = axis.scale(dot["ratio"])
            shapes.append(
                circle(
                    place,
                    first + lane % _MOST_LANES * _LANE,
                    3.6,
                    colour,
                    dot["description"],
                )
            )
        top += _LABEL + _LANE * min(len(members), _MOST_LANES) + 12
    words = "1: an error that is as large as its limit"
    place = axis.scale(1)
    limit = line(
        (place, 0),
        (place, top),
        "var(--ink)",
        1.5,
        words,
        dashed=True,
    )
    return _chart([limit, *shapes], top, axis)


def latency(spreads: Sequence[Json]) -> Drawing:
    """Draw quartiles and medians in milliseconds, of the package and of its source; on a
    logarithmic axis where they span decades.

    Args:
        spreads: with `row`, `low`, `median`, `high`, `source` (whether it is the source program's)
            and `description`.
    """
    rows = list(dict.fromkeys(spread["row"] for spread in spreads))
    least = min(spread["low"] for spread in spreads)
    most = max(spread["high"] for spread in spreads)
    if spans_decades(least, most):
        axis = logarithmic_axis(least, most, " ms")
    else:
        axis = linear_axis(most * 1.04, " ms")
    shapes = []
    for index, row in enumerate(rows):
        shapes.append(label(row, index * _ROW + _LABEL - 8))
    for spread in spreads:
        top = rows.index(spread["row"]) * _ROW + _LABEL
        below, colour = (
            (_BAR - 5, "var(--soft)") if spread["source"] else (4, "var(--c0)")
        )
        low, median, high = (
            axis.scale(spread[name]) for name in ("low", "median", "high")
        )
        y = top + below
        words = spread["description"]
        shapes.append(line((low, y), (high, y), colour, 3, words, opacity=0.5))
        shapes.append(circle(median, y, 3.8, colour, words))
    return _chart(shapes, _ROW * len(rows), axis)


def _chart(shapes: Sequence[Shape], height: float, axis: Axis | None) -> Drawing:
    """Put shapes over the lines of an axis, whose labels are below them.

    Labels of rows stand at the left, above what they name, which leaves a phone the whole width.
    """
    if axis is None:
        return Drawing(height + _MARGIN, shapes)
    return Drawing(
        height + _LABEL + _MARGIN,
        [*draw_axis(axis, height), *shapes],
    )


_KINDS: Mapping[str, Callable[..., Drawing]] = {
    "bars": bars,
    "treemap": treemap,
    "errors": errors,
    "latency": latency,
}


def draw(kind: str, data: Json) -> Drawing | None:
    """Draw a chart of a kind from its data; None for a kind that is not known."""
    if kind in _KINDS:
        return _KINDS[kind](**data)
    return None
