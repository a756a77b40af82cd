"""Tensors without torch: views of bytes, their values in numpy, and the dtypes that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

# The bytes of an element of each dtype, by torch's names. Elements of those that numpy lacks are
# moved as integers of the same width, and computed with only where a cast is known.
_WIDTHS = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
NUMPY = frozenset(
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
)


class UnknownValueError(ValueError):
    """A value can't be computed here as torch computes it."""


@dataclass(frozen=True)
class View:
    """A tensor's place in a storage, which a step makes; strides and offset in elements."""

    step: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sizes": list(self.sizes), "strides": list(self.strides)}

    @classmethod
    def from_json(cls, data: Any) -> View:
        sizes, strides = tuple(data["sizes"]), tuple(data["strides"])
        return cls(data["step"], data["dtype"], sizes, strides, data["offset"])


def width(dtype: str) -> int:
    """Return the bytes of an element. Raises UnknownValueError."""
    if dtype not in _WIDTHS:
        raise UnknownValueError(f"numbers of type {dtype}")
    return _WIDTHS[dtype]


def look(storage: Array, view: View) -> Array:
    """Return the elements of a view of bytes, without a copy; those of dtypes that numpy lacks as
    unsigned integers. Raises UnknownValueError for a view beyond the bytes."""
    size = width(view.dtype)
    kind = view.dtype if view.dtype in NUMPY else f"V{size}" if size > 8 else f"uint{8 * size}"
    numbers = (*view.sizes, *view.strides, view.offset)
    if min(numbers) < 0 or len(view.sizes) != len(view.strides):
        raise UnknownValueError("a view with numbers below zero")
    last = sum((n - 1) * stride for n, stride in zip(view.sizes, view.strides, strict=True))
    if math.prod(view.sizes) == 0:
        return np.empty(view.sizes, kind)
    if (view.offset + last + 1) * size > storage.nbytes:
        raise UnknownValueError("a view beyond its storage")
    flat = storage[view.offset * size : (view.offset + last + 1) * size].view(kind)
    return np.lib.stride_tricks.as_strided(
        flat, view.sizes, [stride * size for stride in view.strides], writeable=False
    )


def lay_out(values: Array, sizes: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the bytes of a new storage that holds values in the order of these strides.

    Raises UnknownValueError where strides leave gaps or overlap, or the sizes are others.
    """
    if tuple(values.shape) != tuple(sizes):
        raise UnknownValueError("values of another shape than torch's")
    if not values.size:
        return np.empty(0, np.uint8)
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], -sizes[d]))
    dense = 1
    for dimension in reversed(order):
        if sizes[dimension] != 1 and strides[dimension] != dense:
            raise UnknownValueError("a tensor that is not dense")
        dense *= sizes[dimension]
    return np.ascontiguousarray(values.transpose(order)).reshape(-1).view(np.uint8)


def logical_bytes(values: Array) -> memoryview:
    """Return the bytes of values in the order of their indices."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def cast(values: Array, old: str, new: str) -> Array:
    """Return values of a dtype as those of another, as torch's `to` gives them.

    Raises UnknownValueError for casts whose result may differ from torch's.
    """
    if old == new:
        return values
    if old == "bfloat16":
        return cast((values.astype(np.uint32) << 16).view(np.float32), "float32", new)
    if new == "bfloat16" and old == "float32":
        return _round_to_bfloat16(values)
    floats = {"float16", "float32", "float64"}
    exact = old in NUMPY and new in NUMPY and (old not in floats or new in floats)
    if not exact or new == "bool":
        raise UnknownValueError(f"{old} as {new}")
    with np.errstate(over="ignore"):
        return values.astype(new)


def _round_to_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16  # to the nearest, ties to even
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
