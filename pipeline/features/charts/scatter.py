"""Scatter charts: dots by two figures, and the line through the dots of the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pipeline.features.charts.axes import draw_axis
from pipeline.features.charts.shapes import circle, label, line
from pipeline.report.elements import WIDTH, Drawing, Json, Shape

_HEIGHT = 260  # pixels of the plot's area
_TITLE = 20  # above the area, for the vertical axis's title
_AXIS = 40  # below the area, for the horizontal axis's labels and title
_MARGIN = 8  # inside the area, so that no dot is cut
_LEFT = 60  # pixels of the narrowest page, for the vertical axis's labels


def scatter(
    dots: Sequence[Json],
    *,
    x_title: str,
    y_title: str,
    x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]],
) -> Drawing:
    """Draw dots by two figures.

    Args:
        dots: the dots, with `x`, `y`, `colour`, `radius` in pixels, `description`, and `front`:
            whether the line of the Pareto front passes through the dot.
        x_ticks, y_ticks: the labelled values of the axes, in ascending order; the first and the
            last bound the axis.
    """
    left, right = x_ticks[0][0], x_ticks[-1][0]
    low, high = y_ticks[0][0], y_ticks[-1][0]

    def across(value: float) -> float:
        share = (value - left) / ((right - left) or 1)
        return _LEFT + share * (WIDTH - _LEFT - _MARGIN)

    def down(value: float) -> float:
        share = (value - low) / ((high - low) or 1)
        return _TITLE + _MARGIN + (1 - share) * (_HEIGHT - 2 * _MARGIN)

    bottom = _TITLE + _HEIGHT
    shapes: list[Shape] = [label(y_title, 12, colour="var(--soft)")]
    shapes += draw_axis((across, x_ticks), bottom)
    shapes.append(label(x_title, bottom + 34, WIDTH, "var(--soft)", "end"))
    for value, text in y_ticks:
        y = down(value)
        shapes.append(line((_LEFT, y), (WIDTH, y), "var(--line)", 1))
        shapes.append(label(text, y + 4, _LEFT - 6, "var(--soft)", "end"))
    front = sorted((dot["x"], dot["y"]) for dot in dots if dot["front"])
    for start, end in pairwise(front):
        points = [(across(x), down(y)) for x, y in (start, end)]
        shapes.append(line(points[0], points[1], "var(--c0)", 1.5, opacity=0.6))
    for dot in dots:
        x, y = across(dot["x"]), down(dot["y"])
        words = dot["description"]
        shapes.append(circle(x, y, dot["radius"], dot["colour"], words))
    return bottom + _AXIS, shapes
