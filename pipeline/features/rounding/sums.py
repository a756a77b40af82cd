"""Counts how many values an operator sums for each of its results, by name and arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_DIMENSIONS = (
    "mean",
    "sum",
    "var",
    "var_mean",
    "std",
    "norm",
    "linalg_vector_norm",
    "logsumexp",
)
_LAST = ("linear", "mm", "mv", "dot", "vdot", "matmul", "bmm", "softmax", "log_softmax")
# Operators that weight this many neighbouring values; and, for operators that add values to others,
# the place of the argument that is added.
_WEIGHING = {"upsample_linear": 2, "upsample_bilinear": 4, "upsample_trilinear": 8}
_WEIGHING |= {"upsample_bicubic": 16, "grid_sampler": 16}
_ADDED = {"index_add": 3, "scatter_add": 3, "scatter_reduce": 3}


def find_sum(name: str, args: Sequence[Any]) -> tuple[int, int]:
    """Return which argument of an operator is summed, and how many values each result sums.

    It is (0, 1) if nothing is summed.

    Args:
        name: the operator's name, without library and overload (`operators.base_name`).
    """
    name = name.removeprefix("_").removeprefix("native_")
    if name in ("addmm", "addmv", "baddbmm"):
        return 1, args[1].shape[-1]
    if name in _ADDED and len(args) > _ADDED[name]:
        number = _ADDED[name]
        most = args[number].shape[args[1]]
        return number, _added_to_one(args[2], most)
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.ndim:
        return 0, 1
    return 0, _count_summed(name, first, args)


def _count_summed(name: str, first: Tensor, args: Sequence[Any]) -> int:
    """Return how many values of the first argument an operator sums for each result."""
    if name in _LAST:
        return first.shape[-1]
    if name.startswith(("conv", "to_copy_conv")):
        return _count_window(name, args)
    if name == "col2im":
        return math.prod(args[2])
    weighing = [count for prefix, count in _WEIGHING.items() if name.startswith(prefix)]
    if weighing:
        return max(weighing) * _count_steps(first) ** 2
    if name == "scaled_dot_product_attention":
        return first.shape[-1] + args[1].shape[-2]
    if name in ("layer_norm", "rms_norm"):
        return math.prod(args[1])
    if name in ("group_norm", "instance_norm"):
        return first[0].numel()
    if name == "cumsum":
        return first.shape[args[1]]
    if name.startswith("adaptive_avg_pool"):
        return first[0, 0].numel()
    if name.startswith("avg_pool"):
        return math.prod(args[1])
    if name in _DIMENSIONS:
        return _count_reduced(first, args[1:])
    return 1


def _count_window(name: str, args: Sequence[Any]) -> int:
    """Return how many values a convolution sums for each result."""
    weight: Tensor = args[1]
    if "transpose" in name or (name == "convolution" and args[6]):
        return weight[:, 0].numel()
    return weight[0].numel()


def _count_steps(value: Tensor) -> int:
    """Return how many rounding steps the weights of neighbours can be off by.

    The weights follow from places, which float32 holds relative to the size, and what one neighbour
    loses, the other gains. Values in coarser dtypes are weighted in float32 too.
    """
    if value.dtype is not torch.float32:
        return 1
    return 2 * max(value.shape[2:], default=1)


def _added_to_one(index: Tensor, most: int) -> int:
    """Return the greatest number of values that go to one place."""
    if not index.numel():
        return 1
    counts = torch.bincount(index.flatten())
    return min(most, int(counts.max()))


def _count_reduced(value: Tensor, arguments: Sequence[Any]) -> int:
    """Return how many values are reduced to one along the dimensions that an argument lists."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            if argument:
                return math.prod(value.shape[dimension] for dimension in argument)
            break
    return value.numel()
