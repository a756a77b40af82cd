"""Values of tensors without torch: their layouts in storages, and casts between dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from pipeline.compile.inspect.arrays import (
    NUMPY,
    Array,
    UnknownValueError,
    is_known,
    to_float32,
    width,
)


def lay_out(values: Array, sizes: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the bytes of a new storage that holds values in the order of these strides.

    Raises UnknownValueError if strides leave gaps or overlap, or if the sizes don't match.
    """
    if tuple(values.shape) != tuple(sizes):
        raise UnknownValueError("values of another shape than torch's")
    if not values.size:
        return np.empty(0, np.uint8)
    if list(strides) == [1]:  # as most
        return np.ascontiguousarray(values).view(np.uint8)
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], -sizes[d]))
    dense = 1
    for dimension in reversed(order):
        if sizes[dimension] != 1 and strides[dimension] != dense:
            raise UnknownValueError("a tensor that is not dense")
        dense *= sizes[dimension]
    return np.ascontiguousarray(values.transpose(order)).reshape(-1).view(np.uint8)


def cast(values: Array, old: str, new: str) -> Array:
    """Cast values from one dtype to another, with the results of torch's `to`.

    Raises UnknownValueError for casts whose result may differ from torch's.
    """
    if old == new:
        return values
    if old == "bfloat16":
        return cast(to_float32(values, old), "float32", new)
    if new == "bfloat16" and old == "float32":
        return _round_to_bfloat16(values)
    if old.startswith("float8") and new == "float32":
        return to_float32(values, old)
    floats = {"float16", "float32", "float64"}
    exact = {old, new} <= NUMPY and (old not in floats or new in floats)
    if not exact or new == "bool":
        raise UnknownValueError(f"{old} as {new}")
    with np.errstate(over="ignore"):
        if new == "float16":  # torch first converts a double to a float
            values = values.astype("float32")
        return values.astype(new)


@cache
def can_cast(old: str, new: str) -> bool:
    """Return whether `cast` gives the same values as torch."""
    try:
        cast(np.empty(0, old if old in NUMPY else f"uint{8 * width(old)}"), old, new)
    except (UnknownValueError, TypeError):
        return old == new and is_known(old)
    return True


def _round_to_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (
        bits + (((bits >> 16) & 1) + 0x7FFF)
    ) >> 16  # to the nearest, ties to even
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
