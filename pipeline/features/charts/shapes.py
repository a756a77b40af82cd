"""SVG elements as the charts use them: their attributes and their descriptions.

Horizontal positions are percentages of the width, so a chart fills any page. Everything else is in
pixels, so text, dots and lines keep their size on every page. Charts are computed in pixels of the
narrowest page, `WIDTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.features.charts.treemap import Box
from pipeline.report.elements import WIDTH, Shape

# Pixels: the least chart width at which the style shows text of class `wide`.
WIDE = 900
_LETTER = 7  # the width of a letter of 12 pixels, on average and in a wide font


def rectangle(box: Box, colour: str, title: str) -> Shape:
    """Return a filled box, separated from others by a thin outline in the paper's colour."""
    attributes = {
        "x": _across(box.left),
        "y": _number(box.top),
        "width": _across(box.width),
        "height": _number(box.height),
        "fill": colour,
        "stroke": "var(--paper)",
        "stroke-width": "0.8",
    }
    return Shape("rect", attributes, title)


def circle(x: float, y: float, radius: float, colour: str, title: str) -> Shape:
    """Return a dot."""
    attributes = {
        "cx": _across(x),
        "cy": _number(y),
        "r": _number(radius),
        "fill": colour,
    }
    return Shape("circle", attributes, title)


def line(
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    width: float,
    title: str = "",
    *,
    dashed: bool = False,
    opacity: float = 1,
) -> Shape:
    """Return a straight line; without a title, it is hidden from screen readers."""
    attributes = {
        "x1": _across(start[0]),
        "y1": _number(start[1]),
        "x2": _across(end[0]),
        "y2": _number(end[1]),
        "stroke": colour,
        "stroke-width": _number(width),
    }
    if dashed:
        attributes["stroke-dasharray"] = "4,3"
    if opacity != 1:
        attributes["opacity"] = _number(opacity)
    if not title:
        attributes["aria-hidden"] = "true"
    return Shape("line", attributes, title)


def label(
    text: str,
    y: float,
    x: float = 0,
    colour: str = "var(--ink)",
    anchor: str = "start",
) -> Shape:
    """Return a line of text with its baseline at `y`."""
    attributes = {
        "x": _across(x),
        "y": _number(y),
        "font-size": "12",
        "fill": colour,
    }
    if anchor != "start":
        attributes["text-anchor"] = anchor
    return Shape("text", attributes, text=text)


def row_labels(text: str, y: float) -> list[Shape]:
    """Return the label of a row, cut at the end of the chart, for narrow and for wide pages."""
    return _fitting_labels(label("", y), cut_text(text, WIDTH), cut_text(text, WIDE))


def tile_labels(texts: Sequence[str], x: float, y: float, colour: str) -> list[Shape]:
    """Return a line of text in a tile that begins at `x`, for narrow pages and for wide ones.

    Screen readers skip the text, since the title of the tile says the same.
    """
    place = label("", y, x, colour)
    hidden = {"dx": "6", "aria-hidden": "true", "pointer-events": "none"}
    attributes = {**place.attributes, **hidden}
    return _fitting_labels(replace(place, attributes=attributes), *texts)


def _fitting_labels(place: Shape, narrow: str, wide: str) -> list[Shape]:
    """Return the labels for narrow and wide pages, or a single label if they are equal."""
    if narrow == wide:
        return [replace(place, text=narrow)] if narrow else []
    shapes: list[Shape] = []
    for name, text in (("narrow", narrow), ("wide", wide)):
        if text:
            attributes = {"class": name, **place.attributes}
            shapes.append(replace(place, attributes=attributes, text=text))
    return shapes


def cut_text(text: str, width: float) -> str:
    """Cut a string, with an ellipsis, to fit into a width in any font."""
    most = int(width / _LETTER)
    if len(text) <= most:
        return text
    return f"{text[: max(0, most - 1)]}…"


def _across(value: float) -> str:
    """Convert pixels of the narrowest page to a percentage of the width."""
    return f"{_number(100 * value / WIDTH)}%"


def _number(value: float) -> str:
    """Format a number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
