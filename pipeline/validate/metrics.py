"""Measures how far an output is from the expected one.

Correlation hides errors, so it is only one of several figures: the greatest, the mean and the
99.9th percentile of the absolute error, the error relative to the signal, the
signal-to-quantization-noise ratio, and, for classifiers, how often both sides choose the same
class. All are computed in float64, chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from pipeline.report.method_records import Figure, OutputErrorRecord

_CHUNK = 1 << 14  # values; a chunk of each tensor fits into the cache of a processor


@dataclass(frozen=True)
class OutputError:
    """The distance of an output from the expected one, in several figures.

    Figures cover the places where both values are finite. If every expected value is zero, the
    figures that compare with the signal are undefined, and None.

    Attributes:
        max_abs: the greatest |a - e|.
        mean_abs: the mean of |a - e|.
        sqnr_db: 10 log10(sum e^2 / sum (a - e)^2), in dB; infinite if nothing differs.
        p999_abs: the smallest bound on |a - e| that holds at 99.9 % of positions (nearest rank).
        relative: sum |a - e| / sum |e|.
        cosine: sum a e / sqrt(sum a^2 sum e^2), from -1 to 1; 0 if all actual values are zero but
            not all expected ones.
        agreement: the share of rows along the last dimension whose largest value is at the same
            position, from 0 to 1; if several expected values of the same row share the maximum, any
            of their positions counts. Defined only for floating-point outputs whose rows have at
            least two values; otherwise None.
        rows: the number of those rows; 0 if none were counted.
        nonfinite: places where both are NaN, or the same infinity, which agree.
        disagreeing: places where one is NaN or infinite and the other is something else. With
            any such place, or a mismatch, the errors are infinite.
        mismatch: a difference of kind, dtype or shape, in words.
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
        """The number of rows that agree."""
        return round((self.agreement or 0.0) * self.rows)

    def to_json(self) -> OutputErrorRecord:
        """Return the figures as strict JSON (`json_number`)."""
        figures: dict[str, Any] = {}
        for name, value in vars(self).items():
            figures[name] = json_number(value) if isinstance(value, float) else value
        figures["agreeing"] = self.agreeing
        return cast(OutputErrorRecord, figures)


# The error of an output that can't be compared.
INFINITE = OutputError(math.inf, math.inf, -math.inf, math.inf, math.inf, -1.0, 0.0)


def json_number(value: float | None) -> Figure:
    """Round a figure to six significant digits, since further ones vary with the number of threads.

    Strict JSON has no infinities or NaN: they become the strings "inf", "-inf" and "nan".
    """
    if value is None:
        return None
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.6g}")


def compare(actual: Any, expected: Any) -> OutputError:
    """Measure the error of an output: a tensor, a Python number or bool, a string or None.

    Integers and bools are compared exactly. Strings have no distance: they are equal or a mismatch.
    """
    if (mismatch := _mismatch(actual, expected)) is not None:
        return replace(INFINITE, mismatch=mismatch)
    if isinstance(expected, str | None):
        return OutputError(0.0, 0.0, math.inf)
    return _measure(torch.as_tensor(actual), torch.as_tensor(expected))


def _mismatch(actual: Any, expected: Any) -> str | None:
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        return _tensor_mismatch(actual, expected)
    if type(actual) is not type(expected):
        return f"{_describe_kind(actual)}, must be {_describe_kind(expected)}"
    if isinstance(expected, str) and actual != expected:
        return f"{actual!r}, must be {expected!r}"
    return None


def _tensor_mismatch(actual: Tensor, expected: Tensor) -> str | None:
    if actual.dtype != expected.dtype:
        dtypes = f"dtype {actual.dtype}, must be {expected.dtype}"
        return dtypes.replace("torch.", "")
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, must be {tuple(expected.shape)}"
    return None


def _describe_kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return "None" if value is None else f"{type(value).__name__} {value!r}"


def _measure(actual: Tensor, expected: Tensor) -> OutputError:
    # Scaled by the greatest value, since squares could overflow or underflow.
    sums = _Sums(max(map(greatest_magnitude, (actual, expected))) or 1.0)
    for a, e, distance in iter_chunks(actual, expected):
        sums.add(a, e, distance)
    if sums.disagreeing:
        return replace(INFINITE, nonfinite=sums.nonfinite, disagreeing=sums.disagreeing)
    agreement, rows = _agreement(actual, expected)
    distance = torch.cat(sums.distances)
    if not distance.any():
        return OutputError(
            0.0, 0.0, math.inf, agreement=agreement, rows=rows, nonfinite=sums.nonfinite
        )
    return OutputError(
        float(distance.max()),
        float(distance.mean()),
        sums.sqnr_db,
        p999_abs=_find_p999(distance),
        relative=sums.relative(distance),
        cosine=sums.cosine,
        agreement=agreement,
        rows=rows,
        nonfinite=sums.nonfinite,
    )


def _find_p999(distance: Tensor) -> float:
    """Return the 99.9th percentile of distances.

    `topk` is several times as fast as `kthvalue`, and as fast again for the few values that are as
    large as the largest of a sample.
    """
    count = distance.numel() // 1000 + 1
    sample = distance[:: distance.numel() // _CHUNK + 1]
    large = distance[distance >= sample.topk(sample.numel() // 500 + 1).values[-1]]
    if large.numel() < count:
        large = distance
    return float(large.topk(count).values[-1])


def _zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


class _Sums:
    """Sums over the places where both tensors are finite, of values divided by `scale`.

    `signal` is the sum of e^2, `noise` of (a - e)^2, `power` of a^2, `product` of a e and
    `magnitude` of |e|. The `distances` |a - e| are not divided.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.nonfinite = 0
        self.disagreeing = 0
        self.signal = _zero()
        self.noise = _zero()
        self.power = _zero()
        self.product = _zero()
        self.magnitude = _zero()
        self.distances = [torch.zeros(0, dtype=torch.float64)]

    def add(self, actual: Tensor, expected: Tensor, distance: Tensor) -> None:
        if not distance.sum().isfinite():
            agree = torch.isclose(actual, expected, 0, 0, equal_nan=True)
            finite = actual.isfinite() & expected.isfinite()
            self.nonfinite += int((~finite & agree).sum())
            self.disagreeing += int((~finite & ~agree).sum())
            actual, expected, distance = (
                values[finite] for values in (actual, expected, distance)
            )
        self.distances.append(distance)
        a, e, d = (values / self.scale for values in (actual, expected, distance))
        self.signal += e.dot(e)
        self.noise += d.dot(d)
        self.power += a.dot(a)
        self.product += a.dot(e)
        self.magnitude += e.abs().sum()

    @property
    def sqnr_db(self) -> float | None:
        return (
            10 * float((self.signal / self.noise).log10()) if self.magnitude else None
        )

    def relative(self, distance: Tensor) -> float | None:
        if not self.magnitude:
            return None
        return float(distance.sum() / self.scale / self.magnitude)

    @property
    def cosine(self) -> float | None:
        if not self.signal:
            return None
        cosine = self.product / (self.signal.sqrt() * self.power.sqrt())
        return float(cosine.clamp(-1, 1).nan_to_num())


def _agreement(actual: Tensor, expected: Tensor) -> tuple[float | None, int]:
    """Return the share of rows that agree, and the number of rows."""
    length = expected.shape[-1] if expected.ndim else 0
    if not expected.dtype.is_floating_point or length < 2 or expected.numel() == 0:
        return None, 0
    rows = _rows(expected, length)
    actual_rows = _rows(actual, length)
    places = actual_rows.argmax(1, keepdim=True)
    chosen = rows.gather(1, places).squeeze(1)
    greatest = rows.amax(1)
    agrees = (chosen == greatest) | (chosen.isnan() & greatest.isnan())
    return float(agrees.double().mean()), len(agrees)


def _rows(tensor: Tensor, length: int) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().cpu().to(dtype).reshape(-1, length)


def greatest_magnitude(value: Any) -> float:
    """Return the greatest finite |v| of a tensor, or 0 for any other value."""
    if not isinstance(value, Tensor):
        return 0.0
    if value.is_floating_point() and value.numel():
        greatest = float(value.abs().max())
        if math.isfinite(greatest):  # nearly always
            return greatest
    wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
    finite = wide[wide.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def iter_chunks(
    actual: Tensor, expected: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield chunks of both tensors in float64, in row-major order, with |a - e|.

    Unequal integers are at least 1 apart, even if float64 can't tell them apart; a complex number
    counts as two values.
    """
    a = _flatten(actual)
    e = _flatten(expected)
    for start in range(0, a.numel(), _CHUNK):
        actual_part = a[start : start + _CHUNK]
        expected_part = e[start : start + _CHUNK]
        actual_doubles = actual_part.double()
        expected_doubles = expected_part.double()
        distance = (actual_doubles - expected_doubles).abs()
        if not actual_part.dtype.is_floating_point:
            is_equal = actual_part == expected_part
            distance = torch.where(is_equal, 0.0, distance.clamp(min=1.0))
        yield actual_doubles, expected_doubles, distance


def _flatten(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return parts.reshape(-1)
