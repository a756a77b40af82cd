"""Charts: shapes in pixels, computed from parts of records, which a page's template writes as SVG.

A chart is computed for the narrowest phone and scales to the width of any page. Its colours are
variables of the page's style, so it follows dark mode. The `title` of a shape becomes its tooltip
and its name for screen readers. No library or separate process draws anything, and the page needs
no script: the same record gives the same bytes.
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
from pipeline.features.charts.scatter import scatter
from pipeline.features.charts.shapes import (
    WIDE,
    circle,
    cut_text,
    line,
    rectangle,
    row_labels,
    tile_labels,
)
from pipeline.features.charts.treemap import Box, split_box
from pipeline.report.colours import LEFT
from pipeline.report.elements import WIDTH, Drawing, Json, Shape
from pipeline.store.sizes import human_size

# All in pixels.
_LABEL = 20  # above a bar
_BAR = 18
_ROW = _LABEL + _BAR + 8
_LANE = 9  # between dots of one row
_MOST_LANES = 4  # per row; further dots start at its top again
_NARROWEST = 3  # the least width of a piece
_ROOM_TO_GIVE = 40  # the least width of a piece from which others are widened
_MARGIN = 2  # above and below a chart
_TREEMAP = 300  # the height of a treemap
# Between the widths of a phone and a large screen: tiles that are square at this width have room
# for names at both.
_TREEMAP_WIDTH = 640


def bars(
    rows: Mapping[str, Sequence[tuple[int, str, str]]],
    *,
    percents: bool = False,
    whole: int = 0,
) -> Drawing:
    """Draw horizontal bars, each divided into pieces.

    Args:
        rows: the pieces of each bar, by its label: amount, colour and description.
        percents: whether to draw an axis in percent below the bars.
        whole: the amount that fills the whole width; by default each bar's total.
    """
    shapes: list[Shape] = []
    for index, (name, pieces) in enumerate(rows.items()):
        top = index * _ROW
        shapes += row_labels(name, top + _LABEL - 8)
        total = whole or sum(amount for amount, _, _ in pieces) or 1
        left = 0.0
        widths = _piece_widths([amount for amount, _, _ in pieces], total)
        for width, (_, colour, description) in zip(widths, pieces, strict=True):
            box = Box(left, top + _LABEL, width, _BAR)
            shapes.append(rectangle(box, colour, description))
            left += width
    return _chart(shapes, _ROW * len(rows), percent_axis() if percents else None)


def _piece_widths(amounts: Sequence[int], total: int) -> list[float]:
    """Return the widths of pieces in pixels.

    Small pieces are widened so that they are visible, at the cost of the largest.
    """
    widths = [WIDTH * amount / total for amount in amounts]
    for place, amount in enumerate(amounts):
        lacking = _NARROWEST - widths[place]
        largest = max(range(len(widths)), key=lambda index: widths[index])
        if amount and lacking > 0 and widths[largest] > _ROOM_TO_GIVE:
            widths[place] += lacking
            widths[largest] -= lacking
    return widths


def treemap(tiles: Sequence[Json]) -> Drawing:
    """Draw the bytes of a package as areas, by group.

    Args:
        tiles: the areas, with `name`, `size` in bytes, `group`, `colour` and `description`.
    """
    groups: dict[str, list[Json]] = {}
    for tile in sorted(tiles, key=lambda tile: -tile["size"]):
        if tile["size"] > 0:
            groups.setdefault(tile["group"], []).append(tile)
    totals: dict[str, int] = {}
    for group, members in groups.items():
        totals[group] = sum(tile["size"] for tile in members)
    ranked = sorted(groups, key=lambda group: -totals[group])
    areas = split_box(
        [totals[group] for group in ranked],
        Box(0, 0, _TREEMAP_WIDTH, _TREEMAP),
    )
    shapes: list[Shape] = []
    for group, area in zip(ranked, areas, strict=True):
        boxes = split_box([tile["size"] for tile in groups[group]], area)
        for tile, wide_box in zip(groups[group], boxes, strict=True):
            scale = WIDTH / _TREEMAP_WIDTH
            box = wide_box._replace(
                left=wide_box.left * scale, width=wide_box.width * scale
            )
            shapes.append(rectangle(box, tile["colour"], tile["description"]))
            shapes += _tile_texts(tile, box)
    return _TREEMAP, shapes


def _tile_texts(tile: Json, box: Box) -> list[Shape]:
    """Return the name and the size of a tile, if they fit into it."""
    colour = "var(--ink)" if tile["colour"] == LEFT else "var(--on-colour)"
    widths = (box.width, box.width * WIDE / WIDTH)
    names = [_fit_name(tile["name"], width) for width in widths]
    size = human_size(tile["size"])
    sizes = [size if width > 62 else "" for width in widths]
    shapes: list[Shape] = []
    if box.height > 20:
        shapes += tile_labels(names, box.left, box.top + 16, colour)
    if box.height > 36:
        shapes += tile_labels(sizes, box.left, box.top + 31, colour)
    return shapes


def _fit_name(name: str, width: float) -> str:
    """Return the trailing parts of a qualified name that fit into a tile; if none do, cut or ""."""
    room = width - 12
    parts = name.split(".")
    for first in range(max(1, len(parts) - 1)):
        suffix = ".".join(parts[first:])
        if cut_text(suffix, room) == suffix:
            return suffix
    if width > 100:
        return cut_text(suffix, room)
    return ""


def errors(dots: Sequence[Json]) -> Drawing:
    """Draw each output's error relative to its limit, on each input set, on a logarithmic axis.

    Args:
        dots: the errors, with `row` (method and output), `ratio` (finite and positive), `ok` and
            `description`.
    """
    rows: dict[str, list[Json]] = {}
    for dot in dots:
        rows.setdefault(dot["row"], []).append(dot)
    ratios = [dot["ratio"] for dot in dots]
    axis = logarithmic_axis(min(*ratios, 0.1), max(*ratios, 10) * 1.0001)
    scale, _ = axis
    shapes: list[Shape] = []
    top = 0.0
    for row, members in rows.items():
        shapes += row_labels(row, top + 14)
        first = top + _LABEL + _LANE / 2
        for lane, dot in enumerate(members):
            colour = "var(--bad)"
            if dot["ok"]:
                colour = "var(--c0)"
            place = scale(dot["ratio"])
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
    place = scale(1)
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
    """Draw quartiles and medians of the package and its source, in milliseconds.

    The axis is logarithmic if they span decades.

    Args:
        spreads: the latencies, with `row`, `low`, `median`, `high`, `source` (whether it is the
            source program's) and `description`.
    """
    rows = list(dict.fromkeys(spread["row"] for spread in spreads))
    least = min(spread["low"] for spread in spreads)
    most = max(spread["high"] for spread in spreads)
    if spans_decades(least, most):
        axis = logarithmic_axis(least, most, " ms")
    else:
        axis = linear_axis(most * 1.04, " ms")
    scale, _ = axis
    shapes = []
    for index, row in enumerate(rows):
        shapes += row_labels(row, index * _ROW + _LABEL - 8)
    for spread in spreads:
        top = rows.index(spread["row"]) * _ROW + _LABEL
        below, colour = (
            (_BAR - 5, "var(--soft)") if spread["source"] else (4, "var(--c0)")
        )
        low, median, high = (scale(spread[name]) for name in ("low", "median", "high"))
        y = top + below
        words = spread["description"]
        shapes.append(line((low, y), (high, y), colour, 3, words, opacity=0.5))
        shapes.append(circle(median, y, 3.8, colour, words))
    return _chart(shapes, _ROW * len(rows), axis)


def _chart(shapes: Sequence[Shape], height: float, axis: Axis | None) -> Drawing:
    """Draw the axis behind the shapes, with its labels below them.

    Row labels are at the left above their rows, which leaves the full width of a phone to the
    chart.
    """
    if axis is None:
        return height + _MARGIN, shapes
    return height + _LABEL + _MARGIN, [*draw_axis(axis, height), *shapes]


_KINDS: Mapping[str, Callable[..., Drawing]] = {
    "bars": bars,
    "treemap": treemap,
    "errors": errors,
    "latency": latency,
    "scatter": scatter,
}


def draw(kind: str, data: Json) -> Drawing | None:
    """Draw a chart of a kind from its data, or return None if the kind is unknown."""
    if kind in _KINDS:
        return _KINDS[kind](**data)
    return None
