"""How far an output is from what it should be, and whether that is near enough.

Correlation hides errors, so the figures are the greatest and the mean absolute error and the ratio
of signal to quantization noise. All are computed in float64, a part of the tensor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK = 1 << 20


@dataclass(frozen=True)
class OutputError:
    """The distance of an output from the expected one.

    `max_abs` and `mean_abs` run over the places where both are finite. `sqnr_db` is
    10 log10(sum e^2 / sum (a - e)^2): infinite where nothing differs, None where it is undefined
    because every expected value is zero. `nonfinite` counts the places where both are NaN, or the
    same infinity, which agree; `disagreeing` those where one is NaN or infinite and the other is
    something else. With any such, or a `mismatch` of kind, dtype or shape, the errors are infinite.
    """

    max_abs: float
    mean_abs: float
    sqnr_db: float | None
    nonfinite: int = 0
    disagreeing: int = 0
    mismatch: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "max_abs": json_number(self.max_abs),
            "mean_abs": json_number(self.mean_abs),
            "sqnr_db": json_number(self.sqnr_db),
            "nonfinite": self.nonfinite,
            "disagreeing": self.disagreeing,
            "mismatch": self.mismatch,
        }


def json_number(value: float | None) -> float | str | None:
    """Six significant digits, as the last ones vary with the number of threads. Strict JSON has
    no infinities: they are the strings "inf" and "-inf", NaN is "nan"."""
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def compare(actual: Any, expected: Any) -> OutputError:
    """The error of an output: a tensor, a Python number or bool, a string or None.

    Integers and bools are compared exactly. What has no distance, such as a string, either is
    the same or is a mismatch.
    """
    mismatch = _mismatch(actual, expected)
    if mismatch is not None:
        return OutputError(math.inf, math.inf, -math.inf, mismatch=mismatch)
    if expected is None or isinstance(expected, str):
        return OutputError(0.0, 0.0, math.inf)
    return _measure(torch.as_tensor(actual), torch.as_tensor(expected))


def _mismatch(actual: Any, expected: Any) -> str | None:
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        if actual.dtype != expected.dtype:
            return f"dtype {_plain(actual.dtype)}, must be {_plain(expected.dtype)}"
        if actual.shape != expected.shape:
            return f"shape {tuple(actual.shape)}, must be {tuple(expected.shape)}"
        return None
    if type(actual) is not type(expected):
        return f"{_described(actual)}, must be {_described(expected)}"
    if isinstance(expected, str) and actual != expected:
        return f"{actual!r}, must be {expected!r}"
    return None


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)


def _measure(actual: Tensor, expected: Tensor) -> OutputError:
    scale = _greatest(actual, expected)
    greatest = total = noise = signal = 0.0
    finite_places = nonfinite = disagreeing = 0
    silent = True
    for a, e, distance in _chunks(actual, expected):
        agree = (a == e) | (a.isnan() & e.isnan())
        finite = a.isfinite() & e.isfinite()
        nonfinite += int((~finite & agree).sum())
        disagreeing += int((~finite & ~agree).sum())
        e, distance = e[finite], distance[finite]
        finite_places += e.numel()
        silent = silent and not bool(e.any())
        greatest = max(greatest, float(distance.max()) if e.numel() else 0.0)
        total += float(distance.sum())
        # Divided by the greatest value first, since squares overflow and vanish.
        noise += float((distance / scale).square().sum())
        signal += float((e / scale).square().sum())
    if disagreeing:
        return OutputError(math.inf, math.inf, -math.inf, nonfinite, disagreeing)
    sqnr = math.inf if greatest == 0 else None if silent else _decibel(signal, noise)
    return OutputError(greatest, total / max(finite_places, 1), sqnr, nonfinite)


def _decibel(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def _greatest(actual: Tensor, expected: Tensor) -> float:
    """The greatest finite magnitude in either, 1 where all is zero."""
    greatest = 0.0
    for a, e, _ in _chunks(actual, expected):
        for part in (a[a.isfinite()], e[e.isfinite()]):
            greatest = max(greatest, float(part.abs().max()) if part.numel() else 0.0)
    return greatest or 1.0


def _chunks(actual: Tensor, expected: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Parts of both tensors in float64, in reading order, with |a - e|. Unequal integers are at
    least 1 apart, whatever float64 makes of them; a complex number counts as two."""
    a, e = _flat(actual), _flat(expected)
    for start in range(0, a.numel(), _CHUNK):
        one, other = a[start : start + _CHUNK], e[start : start + _CHUNK]
        distance = (one.double() - other.double()).abs()
        if not one.dtype.is_floating_point:
            distance = torch.where(one == other, 0.0, distance.clamp(min=1.0))
        yield one.double(), other.double(), distance


def _flat(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(
        -1
    )


@dataclass(frozen=True)
class Closeness:
    """The place that is worst by |a - e| - (atol + rtol |e|), the `excess`; near enough where
    that is not above zero. `index` is the place in the tensor, `allowed` the limit there."""

    excess: float = -math.inf
    index: tuple[int, ...] = ()
    actual: float = 0.0
    expected: float = 0.0
    allowed: float = 0.0

    @property
    def ok(self) -> bool:
        return self.excess <= 0


def within(error: OutputError, actual: Any, expected: Any, atol: float, rtol: float) -> Closeness:
    """The worst place of an output, by the rule of `torch.allclose`: |a - e| <= atol + rtol |e|.

    Integers and bools must be equal, whatever the tolerances. NaN is close to NaN, an infinity to
    itself, and neither to anything else. A mismatch is infinitely far away.
    """
    if error.mismatch is not None:
        return Closeness(excess=math.inf)
    if expected is None or isinstance(expected, str):
        return Closeness()
    actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
    tolerated = expected.dtype.is_floating_point or expected.is_complex()
    worst, start = Closeness(), 0
    for a, e, distance in _chunks(actual, expected):
        allowed = atol + rtol * e.abs() if tolerated else torch.zeros_like(e)
        excess = distance - allowed
        finite = a.isfinite() & e.isfinite()
        agree = (a == e) | (a.isnan() & e.isnan())
        excess = torch.where(finite, excess, torch.where(agree, -math.inf, math.inf))
        place = int(excess.argmax())
        if excess[place] > worst.excess:
            index = _index(start + place, expected)
            figures = (float(t[place]) for t in (excess, a, e, allowed))
            worst = Closeness(next(figures), index, *figures)
        start += a.numel()
    return worst


def _index(place: int, tensor: Tensor) -> tuple[int, ...]:
    shape = torch.Size((*tensor.shape, 2)) if tensor.is_complex() else tensor.shape
    index = []
    for size in reversed(shape):
        place, position = divmod(place, size)
        index.append(position)
    return tuple(reversed(index))
