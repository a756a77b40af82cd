"""Chooses the range of an observer's histogram without comparing tensors element by element.

torchao moves the ends of a range inwards by a hundred-thousandth of the values at a time, and
compares two sums, each a tensor, at every step: up to a second for a histogram with one high peak.
Here the sums are numbers. A worker also searches only once, for both the record of what was
observed and the conversion, which need the same range.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torchao.quantization.pt2e.observer import HistogramObserver

_STEP = 1e-5  # the share of all values by which an end moves
_Range = tuple[Tensor, Tensor]
_ranges: WeakKeyDictionary[HistogramObserver, tuple[bytes, _Range]] = (
    WeakKeyDictionary()
)


def make_search(original: Callable[..., _Range]) -> Callable[..., _Range]:
    """Return a replacement for `HistogramObserver._non_linear_param_search`."""

    def search(self: Any) -> _Range:
        if self.histogram.dtype != torch.float32 or self.histogram.requires_grad:
            return original(self)
        seen = torch.cat([self.histogram, self.min_val.view(1), self.max_val.view(1)])
        content = seen.numpy().tobytes()
        if self not in _ranges or _ranges[self][0] != content:
            _ranges[self] = content, _search(self)
        least, greatest = _ranges[self][1]
        return least.clone(), greatest.clone()

    return search


def _search(observer: Any) -> _Range:
    """Return the minimum and maximum of the range with the least error.

    The search is greedy, as torchao's is, and finds the same range.
    """
    assert observer.histogram.size()[0] == observer.bins, "bins mismatch"
    total = torch.sum(observer.histogram).item()
    sums = torch.cumsum(observer.histogram, dim=0).tolist()
    alpha, beta = 0.0, 1.0
    first, last = 0, observer.bins - 1
    least_error = float("inf")
    while alpha < beta and first < last:
        left = _find_first(sums, first, last, _round((alpha + _STEP) * total))
        right = _find_last(sums, first, last, _round((beta - _STEP) * total))
        moves_first = left - first > last - right
        if moves_first:
            alpha += _STEP
            moved = left, last
        else:
            beta -= _STEP
            moved = first, right
        if moved == (first, last):
            continue
        error = observer._compute_quantization_error(*moved)
        if error > least_error:
            break
        least_error = error
        first, last = moved
    width = (observer.max_val - observer.min_val) / observer.bins
    return observer.min_val + width * first, observer.min_val + width * (last + 1)


def _round(value: float) -> float:
    """Round a number to single precision, as torch does to compare it with a float32 value."""
    return struct.unpack("f", struct.pack("f", value))[0]  # type: ignore[no-any-return]


def _find_first(sums: list[float], first: int, last: int, limit: float) -> int:
    while first < last and sums[first] < limit:
        first += 1
    return first


def _find_last(sums: list[float], first: int, last: int, limit: float) -> int:
    while last > first and sums[last] > limit:
        last -= 1
    return last
