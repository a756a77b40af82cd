"""Finds the place of an output that is farthest beyond its tolerances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.validate.metrics import OutputError, iter_chunks


@dataclass(frozen=True)
class WorstPlace:
    """The place of an output with the greatest `excess`, |a - e| - (atol + rtol |e|).

    The output is close enough if `excess` is at most zero. `index` is the place in the tensor,
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

    Integers and bools must be equal unless `integers` is set. NaN is close to NaN, an infinity to
    itself, and neither to anything else. A mismatch is infinitely far away.
    """
    if error.mismatch is not None:
        return WorstPlace(excess=math.inf)
    if isinstance(expected, str | None):
        return WorstPlace()
    actual = torch.as_tensor(actual)
    expected = torch.as_tensor(expected)
    # An index or a class that is off by one is wrong, however small the difference.
    tolerated = expected.dtype.is_floating_point or expected.is_complex() or integers
    worst = WorstPlace()
    if tolerated and error.max_abs < atol == math.inf:  # infinite if some disagree
        return worst
    start = 0
    for a, e, distance in iter_chunks(actual, expected):
        allowed = atol + rtol * e.abs() if tolerated else torch.zeros_like(e)
        excess = _excess(a, e, distance, allowed)
        place = int(excess.argmax())
        if excess[place] > worst.excess:
            worst = WorstPlace(
                excess=float(excess[place]),
                index=_index_of(start + place, expected),
                actual=float(a[place]),
                expected=float(e[place]),
                allowed=float(allowed[place]),
            )
        start += a.numel()
    return worst


def _excess(
    actual: Tensor, expected: Tensor, distance: Tensor, allowed: Tensor
) -> Tensor:
    excess = distance - allowed
    if excess.sum().isfinite():
        return excess
    finite = actual.isfinite() & expected.isfinite()
    agree = torch.isclose(actual, expected, 0, 0, equal_nan=True)
    otherwise = torch.where(agree, -math.inf, math.inf)
    return torch.where(finite, excess, otherwise)


def _index_of(number: int, tensor: Tensor) -> tuple[int, ...]:
    """Return the index of an element from its number; a complex number counts as two."""
    shape = (*tensor.shape, 2) if tensor.is_complex() else tensor.shape
    index = torch.unravel_index(torch.tensor(number), shape)
    return tuple(map(int, index))
