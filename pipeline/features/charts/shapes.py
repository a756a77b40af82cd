"""Elements of SVG, as the charts need them: their attributes, in pixels, and their descriptions."""

from __future__ import annotations

from pipeline.features.charts.treemap import Box
from pipeline.report.elements import WIDTH, Shape

_LETTER = 7  # the width of a letter of 12 pixels, on average and in a wide font


def rectangle(box: Box, colour: str, title: str) -> Shape:
    """Return a filled box, with a thin line of paper around it that parts it from others."""
    attributes = {
        "x": _number(box.left),
        "y": _number(box.top),
        "width": _number(box.width),
        "height": _number(box.height),
        "fill": colour,
        "stroke": "var(--paper)",
        "stroke-width": "0.8",
    }
    return Shape("rect", attributes, title)


def circle(x: float, y: float, radius: float, colour: str, title: str) -> Shape:
    """Return a dot."""
    attributes = {
        "cx": _number(x),
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
    """Return a straight line; one without a title is hidden from screen readers."""
    attributes = {
        "x1": _number(start[0]),
        "y1": _number(start[1]),
        "x2": _number(end[0]),
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
    *,
    hidden: bool = False,
) -> Shape:
    """Return a line of text that is cut where the chart ends.

    Args:
        y: its base line.
        hidden: whether screen readers pass it over, since a title beside it says the same.
    """
    attributes = {
        "x": _number(x),
        "y": _number(y),
        "font-size": "12",
        "fill": colour,
    }
    if anchor != "start":
        attributes["text-anchor"] = anchor
    if hidden:
        attributes |= {"aria-hidden": "true", "pointer-events": "none"}
    return Shape("text", attributes, text=cut_text(text, WIDTH))


def cut_text(text: str, width: float) -> str:
    """Return the beginning of a text that fits into a width, in whatever font."""
    most = int(width / _LETTER)
    if len(text) <= most:
        return text
    return f"{text[: max(0, most - 1)]}…"


def _number(value: float) -> str:
    """Return a number of pixels, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
