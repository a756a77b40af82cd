"""Counts how many values an operator sums for each of its results, by name and arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_DIMENSIONS = ("mean", "sum", "var", "var_mean", "std", "norm", "linalg_vector_norm", "logsumexp")
_LAST = ("linear", "mm", "mv", "dot", "vdot", "matmul", "bmm", "softmax", "log_softmax")
# Operators that weigh so many neighbouring values, and by the place of what is added to others.
_WEIGHING = {"upsample_linear": 2, "upsample_bilinear": 4, "upsample_trilinear": 8}
_WEIGHING |= {"upsample_bicubic": 16, "grid_sampler": 16}
_ADDED = {"index_add": 3, "scatter_add": 3, "scatter_reduce": 3}


def find_sum(name: str, args: Sequence[Any]) -> tuple[int, int]:
    """Return which argument of an operator is summed, and how many values for each result; (0, 1)
    where nothing is.

    Args:
        name: of the operator, without library and overload (`operators.base_name`).
    """
    name = name.removeprefix("_").removeprefix("native_")
    if name in ("addmm", "addmv", "baddbmm"):
        return 1, args[1].shape[-1]
    if name in _ADDED and len(args) > _ADDED[name]:
        return _ADDED[name], _added_to_one(args[2], args[_ADDED[name]].shape[args[1]])
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not first.ndim:
        return 0, 1
    if name in _LAST:
        return 0, first.shape[-1]
    if name.startswith(("conv", "to_copy_conv")):
        transposed = "transpose" in name or (name == "convolution" and args[6])
        return 0, (args[1][:, 0] if transposed else args[1][0]).numel()
    if name == "col2im":
        return 0, math.prod(args[2])
    if weighing := [count for prefix, count in _WEIGHING.items() if name.startswith(prefix)]:
        # Weights follow from places, which float32 holds to a share of the size: what one neighbour
        # loses, the other gains. Coarser values are weighed in float32 too.
        size = 1
        if first.dtype is torch.float32:
            size = 2 * max(first.shape[2:], default=1)
        return 0, max(weighing) * size**2
    if name == "scaled_dot_product_attention":
        return 0, first.shape[-1] + args[1].shape[-2]
    if name in ("layer_norm", "rms_norm"):
        return 0, math.prod(args[1])
    if name in ("group_norm", "instance_norm"):
        return 0, first[0].numel()
    if name == "cumsum":
        return 0, first.shape[args[1]]
    if name.startswith("adaptive_avg_pool"):
        return 0, first[0, 0].numel()
    if name.startswith("avg_pool"):
        return 0, math.prod(args[1])
    if name in _DIMENSIONS:
        return 0, _reduced(first, args[1:])
    return 0, 1


def _added_to_one(index: Tensor, most: int) -> int:
    """Return how many values go to one place at most."""
    if index.numel():
        return min(most, int(torch.bincount(index.flatten()).max()))
    return 1


def _reduced(value: Tensor, arguments: Sequence[Any]) -> int:
    """Return how many values are reduced to one along the dimensions that an argument lists."""
    dimensions = next((r for r in arguments if isinstance(r, (list, tuple))), None)
    if dimensions:
        return math.prod(value.shape[d] for d in dimensions)
    return value.numel()
