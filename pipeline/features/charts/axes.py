"""Horizontal axes of charts: the positions of values, and the tick labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pipeline.features.charts.shapes import label, line
from pipeline.report.elements import WIDTH, Shape

_DECADES = 2  # powers of ten between the extremes, above which an axis is logarithmic
_ROOM = 28  # pixels at the right end, where no label would fit
_PIXELS_A_POWER = 70
_PIXELS_A_STEP = 90


# An axis over the width of a chart: a function from a value to its pixel, counted from the left,
# and the labelled values, each with its text.
Axis = tuple[Callable[[float], float], Sequence[tuple[float, str]]]


def percent_axis() -> Axis:
    """Return an axis from 0 to 100 %, with a label at every quarter."""
    quarters = [number / 4 for number in range(5)]
    return lambda share: WIDTH * share, [(share, f"{share:.0%}") for share in quarters]


def linear_axis(last: float, unit: str) -> Axis:
    """Return an axis from zero to `last`, with round values as labels."""
    step = 1.0
    if last:
        step = _round_step(last / (WIDTH / _PIXELS_A_STEP))
    ticks = []
    number = 0
    while number * step <= last * (1 - _ROOM / WIDTH):
        value = number * step
        ticks.append((value, f"{value:g}{unit}"))
        number += 1
    return lambda value: WIDTH * value / (last or 1), ticks


def logarithmic_axis(least: float, most: float, unit: str = "") -> Axis:
    """Return a logarithmic axis between two powers of ten."""
    low = math.floor(math.log10(least))
    high = max(math.ceil(math.log10(most)), low + 1)
    step = max(1, math.ceil((high - low) / (WIDTH / _PIXELS_A_POWER)))
    ticks = []
    for power in range(low, high + 1, step):
        ticks.append((10.0**power, _power_text(power) + unit))
    return lambda value: WIDTH * (math.log10(value) - low) / (high - low), ticks


def spans_decades(least: float, most: float) -> bool:
    """Return whether values are too far apart for a linear axis."""
    return least > 0 and most / least > 10**_DECADES


def draw_axis(axis: Axis, height: float) -> list[Shape]:
    """Draw an axis's grid lines and the labels below; the outer labels stay within the chart."""
    shapes = []
    scale, ticks = axis
    for value, text in ticks:
        x = scale(value)
        if x < 1:
            anchor = "start"
        elif x > WIDTH - 1:
            anchor = "end"
        else:
            anchor = "middle"
        shapes.append(line((x, 0), (x, height), "var(--line)", 1))
        shapes.append(label(text, height + 16, x, "var(--soft)", anchor))
    return shapes


def _power_text(power: int) -> str:
    if abs(power) < 4:
        return f"{10.0**power:g}"
    return f"1e{power}".replace("-", "−")


def _round_step(step: float) -> float:
    """Return the nearest of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    for factor, most in ((1, 1.5), (2, 3.5), (5, 7.5)):
        if step < most * power:
            return factor * power
    return 10 * power
