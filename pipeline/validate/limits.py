"""Checks an output against its limits, and describes the limits that it exceeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from pipeline.config.validation import Limits
from pipeline.store.errors import plural
from pipeline.validate.metrics import OutputError, compare, greatest_magnitude
from pipeline.validate.worst_place import WorstPlace, find_worst_place

LIMITS = tuple(Limits.model_fields)
AnyLimits = TypeVar("AnyLimits", bound=Limits)


class OutputLimits(Limits):
    """The limits on one output.

    Attributes:
        integers: whether `atol` also applies to integers and bools, which otherwise must be equal.
        nonfinite: whether a value may be infinite or NaN on one side only, because rounding can
            make it so.
    """

    integers: bool = False
    nonfinite: bool = False


# The name and the limit of each figure of an `OutputError`, except for the greatest error.
FIGURES = {
    "mean_abs": ("mean absolute error", "max_mean_abs"),
    "p999_abs": ("99.9th percentile of the absolute error", "max_p999_abs"),
    "relative": ("relative error", "max_relative"),
    "sqnr_db": ("SQNR", "min_sqnr"),
    "cosine": ("cosine", "min_cosine"),
    "agreement": ("agreement of the greatest values", "min_agreement"),
}
_ABSOLUTE = ("atol", "max_mean_abs", "max_p999_abs")
_MOST_DECIBELS = 6000  # the ratio still fits into a float
_RELATIVE_TO_SIGNAL = ("max_relative", "min_sqnr", "min_cosine", "min_agreement")


def widest(limits: Iterable[Limits]) -> dict[str, float | None]:
    """Return the widest limit of each kind, or None for a kind that none of the limits sets."""
    widest_limits: dict[str, float | None] = {}
    all_limits = list(limits)
    for name in LIMITS:
        values = [getattr(output_limits, name) for output_limits in all_limits]
        values = [value for value in values if value is not None]
        wide = min if name.startswith("min_") else max
        widest_limits[name] = wide(values, default=None)
    return widest_limits


def scale_limits(limits: Limits, growth: float) -> Limits:
    """Widen the absolute limits for an output whose values are `growth` times as large as usual.

    No limit becomes stricter.
    """
    # If the values shrink, the limits stay: rounding errors need not shrink with them.
    if growth <= 1:
        return limits
    update = {}
    for name in _ABSOLUTE:
        limit = getattr(limits, name)
        if limit is not None:
            update[name] = limit * growth
    return limits.model_copy(update=update)


def drop_limits_of_noise(limits: AnyLimits, expected: Any) -> AnyLimits:
    """Drop the limits relative to the signal if the signal may be nothing but rounding errors.

    That is the case if all expected values are within `atol` of zero.
    """
    atol = limits.atol or 0.0
    if not isinstance(expected, torch.Tensor) or greatest_magnitude(expected) > atol:
        return limits
    return limits.model_copy(update=dict.fromkeys(_RELATIVE_TO_SIGNAL))


def check_limits(
    error: OutputError, actual: Any, expected: Any, limits: Limits
) -> tuple[str, ...]:
    """Return a sentence for each limit that an output exceeds, with the figure and the limit."""
    is_float = isinstance(expected, torch.Tensor) and expected.is_floating_point()
    if is_float and error.max_abs <= (limits.atol or 0.0) < math.inf:
        # Every place is close enough; there is no need to find the worst one.
        return tuple(fault for _, fault in _check_figures(error, limits) if fault)
    faults, _ = judge_output(error, actual, expected, limits)
    return faults


def judge_output(
    error: OutputError, actual: Any, expected: Any, limits: Limits
) -> tuple[tuple[str, ...], float | None]:
    """Judge an output by its limits.

    It passes if |a - e| <= atol + rtol |e| everywhere, provided such limits are set, and each
    figure that has a limit keeps to it. An undefined figure passes.

    Returns:
        A sentence for each exceeded limit, and the greatest ratio of an error to its limit, which
        is above 1 if one is exceeded, or None if there are no limits on errors.
    """
    if error.mismatch is not None:
        return (error.mismatch,), math.inf
    takes_nonfinite = isinstance(limits, OutputLimits) and limits.nonfinite
    takes_integers = isinstance(limits, OutputLimits) and limits.integers
    if error.disagreeing and takes_nonfinite:
        both = actual.isfinite() & expected.isfinite()
        actual = torch.where(both, actual, expected)
        error = compare(actual, expected)
    atol = math.inf if limits.atol is None else limits.atol
    rtol = limits.rtol or 0.0
    worst = find_worst_place(error, actual, expected, atol, rtol, takes_integers)
    if error.disagreeing:
        return (_describe_disagreement(error, worst),), math.inf
    ratios = []
    faults = []
    if limits.atol is not None or not worst.ok:
        ratios.append(_ratio_to_tolerance(worst))
    if not worst.ok:
        distance = abs(worst.actual - worst.expected)
        where = _describe_place(worst)
        faults.append(
            f"absolute error {distance:.3g}{where} exceeds {worst.allowed:.3g}"
        )
    for ratio, fault in _check_figures(error, limits):
        if ratio is not None:
            ratios.append(ratio)
        if fault:
            faults.append(fault)
    return tuple(faults), max(ratios, default=None)


def _describe_disagreement(error: OutputError, worst: WorstPlace) -> str:
    noun = "value" if error.disagreeing == 1 else "values"
    where = _describe_place(worst)
    return (
        f"{error.disagreeing} {noun} NaN or infinite, but not on both sides, as{where}"
    )


def _ratio_to_tolerance(worst: WorstPlace) -> float:
    """Return the ratio of the error at the worst place to the allowed error."""
    distance = abs(worst.actual - worst.expected)
    if worst.allowed:
        return distance / worst.allowed
    return 0.0 if worst.ok else math.inf


def _describe_place(worst: WorstPlace) -> str:
    place = f" at {list(worst.index)}" if worst.index else ""
    return f"{place} ({worst.actual:.6g}, must be {worst.expected:.6g})"


def _check_figures(
    error: OutputError, limits: Limits
) -> Iterator[tuple[float | None, str]]:
    """Yield, for each limit on a figure, the ratio of the error to it and a fault, or "".

    The ratio is None if the figure is not an error.
    """
    for figure, (words, name) in FIGURES.items():
        value = getattr(error, figure)
        limit = getattr(limits, name)
        if value is None or limit is None:
            continue
        fault = ""
        if name.startswith("max_"):
            if value > limit:
                fault = f"{words} {value:.6g} exceeds {limit:g}"
            yield _ratio_to_limit(value, limit), fault
        elif name == "min_sqnr":
            if value < limit:
                fault = f"{words} {value:.1f} dB is below {limit:g} dB"
            yield _ratio_of_noise(value, limit), fault
        else:
            if value < limit:
                shown = f"{value:.6g}"
                if name == "min_agreement" and error.rows:
                    shown = f"in {error.agreeing} of {plural(error.rows, 'row')}"
                fault = f"{words} {shown} is below {limit:g}"
            yield None, fault


def _ratio_of_noise(sqnr: float, limit: float) -> float:
    """Return the ratio of the noise to the noise that a limit in dB allows."""
    decibels = min(limit - sqnr, _MOST_DECIBELS)
    return float(10 ** (decibels / 20))


def _ratio_to_limit(value: float, limit: float) -> float:
    if limit:
        return value / limit
    return math.inf if value else 0.0
