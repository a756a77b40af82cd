"""The noise of one value relative to another, as sums that can be added up over calls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.store.quantized import Decibels


@dataclass(frozen=True)
class Noise:
    """Sums of squares of a signal and of its noise, and the greatest difference.

    A value that can't be compared, or is finite on one side only, is infinitely noisy.
    """

    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0

    def __add__(self, addend: Noise) -> Noise:
        return Noise(
            self.signal + addend.signal,
            self.noise + addend.noise,
            max(self.max_abs, addend.max_abs),
        )

    @property
    def sqnr(self) -> float:
        """The signal-to-noise ratio in dB, infinite if nothing differs."""
        if not self.noise:
            return math.inf
        if not self.signal or math.isinf(self.noise):
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)


NO_NOISE = Noise()
_INFINITE = Noise(0.0, math.inf, math.inf)


def measure_noise(actual: Any, expected: Any) -> Noise:
    """Measure the noise of a value: a tensor, or anything that is compared with `==`."""
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        is_equal = type(actual) is type(expected) and actual == expected
        if is_equal:
            return NO_NOISE
        return _INFINITE
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return _INFINITE
    a = _to_double(actual)
    e = _to_double(expected)
    # Values that are infinite or NaN on both sides agree, and would spoil the sums.
    finite = a.isfinite() & e.isfinite()
    agrees = (a == e) | (a.isnan() & e.isnan())
    if bool((~finite & ~agrees).any()):
        return _INFINITE
    signal = e[finite]
    difference = a[finite] - e[finite]
    greatest = 0.0
    if difference.numel():
        greatest = float(difference.abs().max())
    return Noise(
        float(signal.square().sum()),
        float(difference.square().sum()),
        greatest,
    )


def _to_double(tensor: Tensor) -> Tensor:
    parts = tensor.detach()
    if parts.is_complex():
        parts = torch.view_as_real(parts.resolve_conj())
    return parts.reshape(-1).double()


def round_figure(value: float) -> Decibels:
    """Round a figure to a tenth, or to two digits below 1.

    Further digits vary with the processor. Infinity and NaN become text, because strict JSON has
    neither.
    """
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        if value > 0:
            return "inf"
        return "-inf"
    if abs(value) >= 1:
        return round(value, 1)
    return float(f"{value:.2g}")
