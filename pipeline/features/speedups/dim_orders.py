"""Sorts the dimensions of a tensor by their strides, in place of a function of ExecuTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

_ZERO = "0 in strides is not supported for ExecuTorch."  # ExecuTorch's message


def make_dim_order(
    original: Callable[[Sequence[Any]], tuple[int, ...]],
) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """Return a `dim_order_from_stride` that compares strides without making a class for each call.

    ExecuTorch asks for the order of each value several times. Making its class takes longer than
    sorting, and strides that are numbers can be compared directly.
    """

    def dim_order_from_stride(stride: Sequence[Any]) -> tuple[int, ...]:
        if not all(type(step) is int for step in stride):
            for step in stride:
                torch._check(step != 0, lambda: _ZERO)
            steps = [_Stride(step) for step in stride]
        elif 0 in stride:
            return original(stride)  # which refuses it
        else:
            steps = list(stride)
        return tuple(sorted(range(len(steps)), key=steps.__getitem__, reverse=True))

    return dim_order_from_stride


class _Stride:
    """A stride with sizes in it, compared like the strides of ExecuTorch's function."""

    def __init__(self, step: Any) -> None:
        self.step = step

    def __lt__(self, other: Any) -> bool:
        if guard_or_false(self.step < other.step):
            return True
        if guard_or_false(other.step % self.step == 0) and guard_or_true(
            self.step != other.step
        ):
            return True
        return bool(self.step < other.step)
