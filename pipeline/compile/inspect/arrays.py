"""Tensors without torch: views of bytes, their values in numpy, and the known dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

# The size of an element in bytes, by torch's name of the dtype. Elements of dtypes that numpy lacks
# are moved as integers of the same width, and used in computations only if a cast is known.
_WIDTHS = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1
    ),
    "float8_e8m0fnu": 1,
    "complex32": 4,
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
NUMPY = frozenset(["bool", "float16", "float32", "float64", *_INTEGERS])


class UnknownValueError(ValueError):
    """The error for a value that can't be computed here as torch computes it."""


@dataclass(frozen=True)
class View:
    """A tensor's place in the storage that a step makes.

    Strides and offset are in elements.
    """

    step: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "sizes": list(self.sizes), "strides": list(self.strides)}

    @classmethod
    def from_json(cls, data: Any) -> View:
        sizes = tuple(data["sizes"])
        strides = tuple(data["strides"])
        return cls(
            data["step"],
            data["dtype"],
            sizes,
            strides,
            data["offset"],
        )

    @property
    def nbytes(self) -> int:
        """The size of the tensor's elements in bytes. Raises UnknownValueError."""
        return math.prod(self.sizes) * width(self.dtype)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in the order of their indices, without gaps."""
        dense = 1
        for size, stride in zip(
            reversed(self.sizes), reversed(self.strides), strict=True
        ):
            if size > 1 and stride != dense:
                # The strides of a tensor without elements mean nothing.
                return not self.nbytes
            dense *= size
        return True


def width(dtype: str) -> int:
    """Return the size of an element in bytes. Raises UnknownValueError for an unknown dtype."""
    if dtype not in _WIDTHS:
        raise UnknownValueError(f"numbers of type {dtype}")
    return _WIDTHS[dtype]


def is_known(dtype: str) -> bool:
    """Return whether the size of a dtype's elements is known."""
    return dtype in _WIDTHS


def look(storage: Array, view: View) -> Array:
    """Return the elements of a view of bytes, without a copy.

    If numpy lacks the dtype, elements are unsigned integers, or raw bytes if wider than 8 bytes.
    Raises UnknownValueError if the view is invalid, and numpy's ValueError or OverflowError if it
    extends beyond the bytes.
    """
    size = width(view.dtype)
    kind = _numpy_dtype(view.dtype)
    numbers = (*view.sizes, *view.strides, view.offset)
    if min(numbers) < 0 or len(view.sizes) != len(view.strides):
        raise UnknownValueError("a view with numbers below zero")
    # Without elements, there is no last element to check against the storage.
    if math.prod(view.sizes) == 0:
        return np.empty(view.sizes, kind)
    strides = [stride * size for stride in view.strides]
    # `as_strided` takes several times as long.
    array: Array = np.ndarray(view.sizes, kind, storage, view.offset * size, strides)
    array.flags.writeable = False
    return array


def _numpy_dtype(dtype: str) -> str:
    """Return numpy's name of a dtype, or of integers or bytes of its width if numpy lacks it."""
    if dtype in NUMPY:
        return dtype
    size = width(dtype)
    if size > 8:
        return f"V{size}"
    return f"uint{8 * size}"


def logical_bytes(values: Array) -> memoryview:
    """Return the bytes of values in the order of their indices."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def to_float32(values: Array, dtype: str) -> Array:
    """Return the values of a float dtype as float32, as torch's `to` does.

    Raises UnknownValueError for other dtypes.
    """
    if dtype == "bfloat16":
        # A bfloat16 is the upper half of a float32.
        return (values.astype("uint32") << 16).view("float32")
    if dtype in _FLOAT8:
        return _float8_values(dtype)[values]
    if dtype not in ("float16", "float32", "float64"):
        raise UnknownValueError(f"{dtype} as float32")
    # Values beyond float32's range become infinite, as in torch.
    with np.errstate(over="ignore"):
        return values.astype("float32", copy=False)


# Mantissa bits and exponent bias of 8-bit floats. `fn` dtypes have no infinity; `fnuz` dtypes have
# none either, and their only NaN replaces minus zero (https://arxiv.org/abs/2209.05433).
_FLOAT8 = {
    "float8_e4m3fn": (3, 7),
    "float8_e5m2": (2, 15),
    "float8_e4m3fnuz": (3, 8),
    "float8_e5m2fnuz": (2, 16),
    "float8_e8m0fnu": (0, 127),
}


@cache
def _float8_values(dtype: str) -> Array:
    """Return the values of all 256 bit patterns of a dtype, as float32."""
    bits = np.arange(256)
    if dtype == "float8_e8m0fnu":
        return np.where(bits < 255, np.ldexp(1.0, bits - 127), np.nan).astype("float32")
    mantissa, bias = _FLOAT8[dtype]
    exponent = (bits & 127) >> mantissa
    fraction = bits & ((1 << mantissa) - 1)
    whole = np.where(exponent > 0, fraction + (1 << mantissa), fraction)
    values = np.ldexp(
        whole.astype("float64"),
        np.maximum(exponent, 1) - bias - mantissa,
    )
    if dtype.endswith("fnuz"):
        values[128] = np.nan
    elif dtype.endswith("fn"):
        values[(bits & 127) == 127] = np.nan
    else:
        special = np.where(fraction, np.nan, np.inf)
        values = np.where(exponent < 31, values, special)
    return np.where(bits < 128, values, -values).astype("float32")
