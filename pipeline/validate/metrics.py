"""Measures how far an output is from the expected one, and finds the place that is worst.

Correlation hides errors, so it is one figure among others: the greatest, the mean and the 99.9th
percentile of the absolute error, the error relative to the signal, the ratio of signal to
quantization noise, and, for classifiers, how often both choose the same class. All are computed in
float64, a part of the tensor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from pipeline.report.records import Figure, OutputErrorRecord

_CHUNK = 1 << 20


@dataclass(frozen=True)
class OutputError:
    """The figures of how far an output is from the expected one.

    Figures run over the places where both are finite. Where every expected value is zero, those
    that compare with the signal are undefined, and None.

    Attributes:
        max_abs: the greatest |a - e|.
        mean_abs: the mean of |a - e|.
        sqnr_db: 10 log10(sum e^2 / sum (a - e)^2), in dB; infinite where nothing differs.
        p999_abs: the least |a - e| that 99.9 % of the places don't exceed (nearest rank).
        relative: sum |a - e| / sum |e|.
        cosine: sum a e / sqrt(sum a^2 sum e^2), from -1 to 1; 0 where every actual value is zero
            and not every expected one.
        agreement: the share of rows along the last dimension whose greatest value stands at the
            same place, from 0 to 1; a row whose expected values have several greatest takes any
            of them. None for what is no floating-point tensor with at least two values in a row.
        rows: the number of those rows; 0 where nothing was counted.
        nonfinite: places where both are NaN, or the same infinity, which agree.
        disagreeing: places where one is NaN or infinite and the other is something else. With
            any such, or a mismatch, the errors are infinite.
        mismatch: of kind, dtype or shape.
    """

    max_abs: float
    mean_abs: float
    sqnr_db: float | None
    p999_abs: float = 0.0
    relative: float | None = 0.0
    cosine: float | None = 1.0
    agreement: float | None = None
    rows: int = 0
    nonfinite: int = 0
    disagreeing: int = 0
    mismatch: str | None = None

    @property
    def agreeing(self) -> int:
        """Return the number of rows that agree."""
        return round((self.agreement or 0.0) * self.rows)

    def to_json(self) -> OutputErrorRecord:
        """Return the figures as strict JSON (`json_number`)."""
        figures = {}
        for n, v in vars(self).items():
            figures[n] = json_number(v) if isinstance(v, float) else v
        return cast(OutputErrorRecord, {**figures, "agreeing": self.agreeing})


# The error of an output that can't be compared.
INFINITE = OutputError(math.inf, math.inf, -math.inf, math.inf, math.inf, -1.0, 0.0)


def json_number(value: float | None) -> Figure:
    """Round a figure to six significant digits, as the last ones vary with the number of threads.
    Strict JSON has no infinities: they are the strings "inf" and "-inf", NaN is "nan"."""
    if value is None:
        return None
    if math.isfinite(value):
        return float(f"{value:.6g}")
    if math.isnan(value):
        return "nan"
    if value > 0:
        return "inf"
    return "-inf"


def compare(actual: Any, expected: Any) -> OutputError:
    """Measure the error of an output: a tensor, a Python number or bool, a string or None.

    Integers and bools are compared exactly. A string, which has no distance, either is the same or
    is a mismatch.
    """
    mismatch = _mismatch(actual, expected)
    if mismatch is not None:
        return replace(INFINITE, mismatch=mismatch)
    if expected is None or isinstance(expected, str):
        return OutputError(0.0, 0.0, math.inf)
    return _measure(torch.as_tensor(actual), torch.as_tensor(expected))


def _mismatch(actual: Any, expected: Any) -> str | None:
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        if actual.dtype != expected.dtype:
            dtypes = (str(tensor.dtype).removeprefix("torch.") for tensor in (actual, expected))
            return "dtype {}, must be {}".format(*dtypes)
        if actual.shape != expected.shape:
            return f"shape {tuple(actual.shape)}, must be {tuple(expected.shape)}"
        return None
    if type(actual) is not type(expected):
        return f"{_describe_kind(actual)}, must be {_describe_kind(expected)}"
    if isinstance(expected, str) and actual != expected:
        return f"{actual!r}, must be {expected!r}"
    return None


def _describe_kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return "None" if value is None else f"{type(value).__name__} {value!r}"


def _measure(actual: Tensor, expected: Tensor) -> OutputError:
    scale = max(greatest_magnitude(_flatten(tensor)) for tensor in (actual, expected)) or 1.0
    nonfinite = disagreeing = 0
    signal, noise, power, product, magnitude = torch.zeros(5, dtype=torch.float64)
    distances = [torch.zeros(0, dtype=torch.float64)]
    for a, e, distance in _chunks(actual, expected):
        agree = (a == e) | (a.isnan() & e.isnan())
        finite = a.isfinite() & e.isfinite()
        nonfinite += int((~finite & agree).sum())
        disagreeing += int((~finite & ~agree).sum())
        # Divided by the greatest value first, since squares overflow and vanish.
        a = a[finite] / scale
        e = e[finite] / scale
        distance = distance[finite]
        signal += e.square().sum()
        noise += (distance / scale).square().sum()
        power += a.square().sum()
        product += (a * e).sum()
        magnitude += e.abs().sum()
        distances.append(distance)
    if disagreeing:
        return replace(INFINITE, nonfinite=nonfinite, disagreeing=disagreeing)
    (agreement, rows), distance = _agreement(actual, expected), torch.cat(distances)
    if not distance.any():
        return OutputError(0.0, 0.0, math.inf, agreement=agreement, rows=rows, nonfinite=nonfinite)
    cosine = (product / (signal.sqrt() * power.sqrt())).clamp(-1, 1).nan_to_num()
    return OutputError(
        float(distance.max()),
        float(distance.mean()),
        10 * float((signal / noise).log10()) if magnitude else None,
        p999_abs=float(distance.kthvalue(math.ceil(distance.numel() * 0.999)).values),
        relative=float(distance.sum() / scale / magnitude) if magnitude else None,
        cosine=float(cosine) if signal else None,
        agreement=agreement,
        rows=rows,
        nonfinite=nonfinite,
    )


def _agreement(actual: Tensor, expected: Tensor) -> tuple[float | None, int]:
    """Return the share of rows that agree, and their number."""
    last = 0
    if expected.ndim:
        last = expected.shape[-1]
    if not expected.dtype.is_floating_point or last < 2 or expected.numel() == 0:
        return None, 0
    rows, actual_rows = (t.detach().cpu().double().reshape(-1, last) for t in (expected, actual))
    chosen = rows.gather(1, actual_rows.argmax(1, keepdim=True)).squeeze(1)
    greatest = rows.amax(1)
    agrees = (chosen == greatest) | (chosen.isnan() & greatest.isnan())
    return float(agrees.double().mean()), len(agrees)


def greatest_magnitude(value: Any) -> float:
    """Return the greatest finite |v| of a tensor; 0 for anything else."""
    if not isinstance(value, Tensor):
        return 0.0
    wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
    finite = wide[wide.isfinite()]
    if finite.numel():
        return float(finite.abs().max())
    return 0.0


def _chunks(actual: Tensor, expected: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield parts of both tensors in float64, in reading order, with |a - e|.

    Unequal integers are at least 1 apart, whatever float64 makes of them; a complex number counts
    as two.
    """
    a = _flatten(actual)
    e = _flatten(expected)
    for start in range(0, a.numel(), _CHUNK):
        actual_part = a[start : start + _CHUNK]
        expected_part = e[start : start + _CHUNK]
        distance = (actual_part.double() - expected_part.double()).abs()
        if not actual_part.dtype.is_floating_point:
            distance = torch.where(actual_part == expected_part, 0.0, distance.clamp(min=1.0))
        yield actual_part.double(), expected_part.double(), distance


def _flatten(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return parts.reshape(-1)


@dataclass(frozen=True)
class WorstPlace:
    """The place of an output with the greatest `excess`, |a - e| - (atol + rtol |e|).

    The output is near enough where that is not above zero. `index` is the place in the tensor,
    `allowed` the limit there.
    """

    excess: float = -math.inf
    index: tuple[int, ...] = ()
    actual: float = 0.0
    expected: float = 0.0
    allowed: float = 0.0

    @property
    def ok(self) -> bool:
        return self.excess <= 0


def find_worst_place(
    error: OutputError,
    actual: Any,
    expected: Any,
    atol: float,
    rtol: float,
    integers: bool = False,
) -> WorstPlace:
    """Find the worst place of an output by the rule of `torch.allclose`, |a-e| <= atol + rtol |e|.

    Integers and bools must be equal, whatever the tolerances. NaN is close to NaN, an infinity to
    itself, and neither to anything else. A mismatch is infinitely far away.
    """
    if error.mismatch is not None:
        return WorstPlace(excess=math.inf)
    if expected is None or isinstance(expected, str):
        return WorstPlace()
    actual = torch.as_tensor(actual)
    expected = torch.as_tensor(expected)
    tolerated = expected.dtype.is_floating_point or expected.is_complex() or integers
    worst, start = WorstPlace(), 0
    for a, e, distance in _chunks(actual, expected):
        allowed = atol + rtol * e.abs() if tolerated else torch.zeros_like(e)
        excess = distance - allowed
        finite = a.isfinite() & e.isfinite()
        agree = (a == e) | (a.isnan() & e.isnan())
        excess = torch.where(finite, excess, torch.where(agree, -math.inf, math.inf))
        place = int(excess.argmax())
        if excess[place] > worst.excess:
            shape = (*expected.shape, 2) if expected.is_complex() else expected.shape
            index = torch.unravel_index(torch.tensor(start + place), shape)
            figures = (float(t[place]) for t in (excess, a, e, allowed))
            worst = WorstPlace(next(figures), tuple(map(int, index)), *figures)
        start += a.numel()
    return worst
