"""Checks an output against its limits, and says in words which of them it exceeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch

from pipeline.config.validation import Limits
from pipeline.store.errors import plural
from pipeline.validate.metrics import (
    OutputError,
    compare,
    find_worst_place,
    greatest_magnitude,
)

LIMITS = tuple(Limits.model_fields)
AnyLimits = TypeVar("AnyLimits", bound=Limits)


class OutputLimits(Limits):
    """The limits of one output.

    `integers` has `atol` hold for integers and bools too, which are compared exactly otherwise;
    `nonfinite` lets a value be infinite or NaN on one side alone, where rounding moves some so.
    """

    integers: bool = False
    nonfinite: bool = False


# By figure of an `OutputError` other than the greatest error: its words, and the limit on it.
FIGURES = {
    "mean_abs": ("mean absolute error", "max_mean_abs"),
    "p999_abs": ("99.9th percentile of the absolute error", "max_p999_abs"),
    "relative": ("relative error", "max_relative"),
    "sqnr_db": ("SQNR", "min_sqnr"),
    "cosine": ("cosine", "min_cosine"),
    "agreement": ("agreement of the greatest values", "min_agreement"),
}
_ABSOLUTE = ("atol", "max_mean_abs", "max_p999_abs")
_RELATIVE_TO_SIGNAL = ("max_relative", "min_sqnr", "min_cosine", "min_agreement")


def widest(every: Iterable[Limits]) -> dict[str, float | None]:
    """Return the widest of several limits of each kind; None for a kind that none of them has."""
    found: dict[str, float | None] = {}
    listed = list(every)
    for name in LIMITS:
        values = [value for each in listed if (value := getattr(each, name)) is not None]
        wide = min if name.startswith("min_") else max
        found[name] = wide(values, default=None)
    return found


def scale_limits(limits: Limits, growth: float) -> Limits:
    """Widen the absolute limits for an output whose values are `growth` times as large as usual; no
    limit is made stricter."""
    if growth <= 1:
        return limits
    given = {name: getattr(limits, name) for name in _ABSOLUTE}
    return limits.model_copy(update={n: v * growth for n, v in given.items() if v is not None})


def drop_limits_of_noise(limits: AnyLimits, expected: Any) -> AnyLimits:
    """Drop the limits relative to the signal where that may be nothing but rounding, since all
    expected values are within `atol` of zero."""
    atol = limits.atol or 0.0
    if not isinstance(expected, torch.Tensor) or greatest_magnitude(expected) > atol:
        return limits
    return limits.model_copy(update=dict.fromkeys(_RELATIVE_TO_SIGNAL))


class Judgement(NamedTuple):
    """An output against its limits: a sentence for each that it exceeds, and the greatest ratio of
    an error to its limit, above 1 where one is exceeded; None without limits on errors."""

    wrong: tuple[str, ...]
    of_limit: float | None


def check_limits(error: OutputError, actual: Any, expected: Any, limits: Limits) -> tuple[str, ...]:
    """Return what is wrong with an output, each with its figure and its limit."""
    return judge_output(error, actual, expected, limits).wrong


def judge_output(error: OutputError, actual: Any, expected: Any, limits: Limits) -> Judgement:
    """Judge an output by its limits.

    It passes where |a - e| <= atol + rtol |e| everywhere, if there are such limits, and each figure
    keeps to its limit, if it has one. A figure that is undefined passes.
    """
    if error.mismatch is not None:
        return Judgement((error.mismatch,), math.inf)
    if error.disagreeing and isinstance(limits, OutputLimits) and limits.nonfinite:
        both = actual.isfinite() & expected.isfinite()
        actual = torch.where(both, actual, expected)
        error = compare(actual, expected)
    atol = math.inf if limits.atol is None else limits.atol
    integers = isinstance(limits, OutputLimits) and limits.integers
    worst = find_worst_place(error, actual, expected, atol, limits.rtol or 0.0, integers)
    at = f" at {list(worst.index)}" if worst.index else ""
    values = f"({worst.actual:.6g}, must be {worst.expected:.6g})"
    if error.disagreeing:
        count = f"{error.disagreeing} value{'s' if error.disagreeing > 1 else ''}"
        wrong = f"{count} NaN or infinite, and not alike on both sides, as{at} {values}"
        return Judgement((wrong,), math.inf)
    found = list(_check_figures(error, limits))
    distance, allowed = abs(worst.actual - worst.expected), worst.allowed
    if not worst.ok:
        sentence = f"absolute error {distance:.3g}{at} {values} exceeds {allowed:.3g}"
        found.insert(0, (distance / allowed if allowed else math.inf, sentence))
    elif limits.atol is not None and distance and allowed:
        found.append((distance / allowed, ""))
    elif limits.atol is not None:
        found.append((0.0, ""))
    ratios = [ratio for ratio, _ in found if ratio is not None]
    sentences = tuple(sentence for _, sentence in found if sentence)
    return Judgement(sentences, max(ratios, default=None))


def _check_figures(error: OutputError, limits: Limits) -> Iterator[tuple[float | None, str]]:
    """Yield for each limit on a figure the ratio of the error to it, None for one of no error, and
    what is wrong, or ""."""
    for figure, (words, name) in FIGURES.items():
        found, limit = getattr(error, figure), getattr(limits, name)
        if found is None or limit is None:
            continue
        shown, unit = (f"{found:.1f}", " dB") if name == "min_sqnr" else (f"{found:.6g}", "")
        if name == "min_agreement" and error.rows:
            shown = f"in {error.agreeing} of {plural(error.rows, 'row')}"
        ratio, wrong = None, ""
        if name.startswith("max_"):
            ratio = found / limit if limit else math.inf if found else 0.0
            wrong = f"{words} {shown} exceeds {limit:g}" if found > limit else ""
        else:
            wrong = f"{words} {shown}{unit} is below {limit:g}{unit}" if found < limit else ""
            if name == "min_sqnr":  # the noise to the noise that is allowed
                ratio = 10 ** (min(limit - found, 6000) / 20)
        yield ratio, wrong
