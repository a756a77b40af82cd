"""What an output is held to: limits, and in words where it exceeds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pipeline.validate.metrics import OutputError, within

# Limits but for the tolerances: of which figure of an `OutputError`, and how it is called.
_FIGURES = {
    "max_mean_abs": ("mean_abs", "mean absolute error"),
    "max_p999_abs": ("p999_abs", "99.9th percentile of the absolute error"),
    "max_relative": ("relative", "relative error"),
    "min_sqnr": ("sqnr_db", "SQNR"),
    "min_cosine": ("cosine", "cosine"),
    "min_agreement": ("agreement", "agreement of the greatest values"),
}
LIMITS = ("atol", "rtol", *_FIGURES)


class Limits(Protocol):
    """An output passes where |a - e| <= atol + rtol |e| everywhere and its figures (`OutputError`)
    are at most, or at least, what is given of the others. A figure that is undefined passes."""

    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...
    @property
    def max_mean_abs(self) -> float | None: ...
    @property
    def max_p999_abs(self) -> float | None: ...
    @property
    def max_relative(self) -> float | None: ...
    @property
    def min_sqnr(self) -> float | None: ...
    @property
    def min_cosine(self) -> float | None: ...
    @property
    def min_agreement(self) -> float | None: ...


@dataclass(frozen=True)
class OwnLimits:
    """Limits by themselves."""

    atol: float
    rtol: float
    max_mean_abs: float | None
    max_p999_abs: float | None
    max_relative: float | None
    min_sqnr: float | None
    min_cosine: float | None
    min_agreement: float | None

    @classmethod
    def of(cls, limits: Limits, **changes: float | None) -> OwnLimits:
        return cls(**{name: getattr(limits, name) for name in LIMITS} | changes)


_ABSOLUTE = ("atol", "max_mean_abs", "max_p999_abs")
_OF_THE_SIGNAL = ("max_relative", "min_sqnr", "min_cosine", "min_agreement")


def grown(limits: Limits, growth: float) -> Limits:
    """Limits for an output whose values are `growth` times as large as usual: absolute errors may
    be so too. No limit is made stricter."""
    if growth <= 1:
        return limits
    given = ((name, getattr(limits, name)) for name in _ABSOLUTE)
    return OwnLimits.of(limits, **{name: v * growth for name, v in given if v is not None})


def without_signal(limits: Limits, expected: Any) -> Limits:
    """Limits for an output that may be nothing but rounding: where all expected values are within
    `atol` of zero, figures that compare an error with them are of noise, and do not count."""
    if not isinstance(expected, torch.Tensor) or magnitude(expected) > limits.atol:
        return limits
    return OwnLimits.of(limits, **dict.fromkeys(_OF_THE_SIGNAL))


def magnitude(value: Any) -> float:
    """The greatest finite |v| of a tensor; 0 for what has none."""
    if not isinstance(value, torch.Tensor):
        return 0.0
    finite = value[value.isfinite()]
    return float(finite.to(torch.complex128).abs().max()) if finite.numel() else 0.0


def excesses(error: OutputError, actual: Any, expected: Any, limits: Limits) -> Iterator[str]:
    """What is wrong with an output, each with its figure and its limit."""
    if error.mismatch is not None:
        yield error.mismatch
        return
    worst = within(error, actual, expected, limits.atol, limits.rtol)
    at = f" at {list(worst.index)}" if worst.index else ""
    values = f"({worst.actual:.6g}, must be {worst.expected:.6g})"
    if error.disagreeing:
        count = f"{error.disagreeing} value{'s' if error.disagreeing > 1 else ''}"
        yield f"{count} NaN or infinite on one side only, as{at} {values}"
        return
    if not worst.ok:
        distance = abs(worst.actual - worst.expected)
        yield f"absolute error {distance:.3g}{at} {values} exceeds {worst.allowed:.3g}"
    for name, (figure, words) in _FIGURES.items():
        found, limit = getattr(error, figure), getattr(limits, name)
        if found is None or limit is None:
            continue
        if name == "min_sqnr":
            shown, limited = f"{found:.1f} dB", f"{limit:g} dB"
        else:
            shown, limited = f"{found:.6g}", f"{limit:g}"
        if name.startswith("max_") and found > limit:
            yield f"{words} {shown} exceeds {limited}"
        elif name.startswith("min_") and found < limit:
            yield f"{words} {shown} is below {limited}"
