"""Tensors without torch: views of bytes, their values in numpy, and the dtypes that are known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

# The bytes of an element of each dtype, by torch's names. Elements of those that numpy lacks are
# moved as integers of the same width, and computed with only where a cast is known.
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
    """A value can't be computed here as torch computes it."""


class Storage(Protocol):
    """The memory of tensors, which may be in a file until it is read."""

    @property
    def nbytes(self) -> int: ...

    def read(self) -> Array:
        """Return all bytes."""

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes in pieces, of which each lasts until the next."""


@dataclass(frozen=True)
class HeldStorage:
    """A storage in memory, as bytes."""

    array: Array

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def read(self) -> Array:
        return self.array

    def pieces(self) -> Iterator[memoryview]:
        yield self.array.data


@dataclass(frozen=True)
class View:
    """A tensor's place in a storage, which a step makes; strides and offset in elements."""

    step: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "sizes": list(self.sizes),
            "strides": list(self.strides),
        }

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
        """The bytes that a tensor's elements take. Raises UnknownValueError."""
        return math.prod(self.sizes) * width(self.dtype)

    @property
    def is_contiguous(self) -> bool:
        """Whether a tensor's elements lie in memory in the order of their indices, without gaps."""
        dense = 1
        for size, stride in zip(
            reversed(self.sizes), reversed(self.strides), strict=True
        ):
            if size > 1 and stride != dense:
                return not self.nbytes
            dense *= size
        return True


def width(dtype: str) -> int:
    """Return the bytes of an element. Raises UnknownValueError."""
    if dtype not in _WIDTHS:
        raise UnknownValueError(f"numbers of type {dtype}")
    return _WIDTHS[dtype]


def look(storage: Array, view: View) -> Array:
    """Return the elements of a view of bytes, without a copy; those of dtypes that numpy lacks as
    unsigned integers. Raises UnknownValueError for a view beyond the bytes."""
    size = width(view.dtype)
    kind = _numpy_dtype(view.dtype)
    numbers = (*view.sizes, *view.strides, view.offset)
    if min(numbers) < 0 or len(view.sizes) != len(view.strides):
        raise UnknownValueError("a view with numbers below zero")
    if math.prod(view.sizes) == 0:
        return np.empty(view.sizes, kind)
    last = view.offset
    for length, stride in zip(view.sizes, view.strides, strict=True):
        last += (length - 1) * stride
    end = (last + 1) * size
    if end > storage.nbytes:
        raise UnknownValueError("a view beyond its storage")
    flat = storage[view.offset * size : end].view(kind)
    strides = [stride * size for stride in view.strides]
    return np.lib.stride_tricks.as_strided(flat, view.sizes, strides, writeable=False)


def _numpy_dtype(dtype: str) -> str:
    """Return numpy's name of a dtype; for one that it lacks, integers or bytes of its width."""
    if dtype in NUMPY:
        return dtype
    size = width(dtype)
    if size > 8:
        return f"V{size}"
    return f"uint{8 * size}"


def lay_out(values: Array, sizes: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the bytes of a new storage that holds values in the order of these strides.

    Raises UnknownValueError where strides leave gaps or overlap, or the sizes are others.
    """
    if tuple(values.shape) != tuple(sizes):
        raise UnknownValueError("values of another shape than torch's")
    if not values.size:
        return np.empty(0, np.uint8)
    order = sorted(
        range(len(sizes)),
        key=lambda d: (-strides[d], -sizes[d]),
    )
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
        return cast(
            (values.astype("uint32") << 16).view("float32"),
            "float32",
            new,
        )
    if new == "bfloat16" and old == "float32":
        return _round_to_bfloat16(values)
    if old in _FLOAT8 and new == "float32":
        return _float8_values(old)[values]
    floats = {"float16", "float32", "float64"}
    exact = {old, new} <= NUMPY and (old not in floats or new in floats)
    if not exact or new == "bool":
        raise UnknownValueError(f"{old} as {new}")
    with np.errstate(over="ignore"):
        if new == "float16":  # torch makes a float of a double first
            values = values.astype("float32")
        return values.astype(new)


def can_cast(old: str, new: str) -> bool:
    """Return whether `cast` knows the values that torch gives."""
    try:
        cast(
            np.empty(0, old if old in NUMPY else f"uint{8 * width(old)}"),
            old,
            new,
        )
    except (UnknownValueError, TypeError):
        return old == new and old in _WIDTHS
    return True


# Bits of mantissa and bias of the exponent of floats of eight bits; `fnuz` have no infinity and one
# NaN in the place of minus zero, and `fn` no infinity (https://arxiv.org/abs/2209.05433).
_FLOAT8 = {
    "float8_e4m3fn": (3, 7),
    "float8_e5m2": (2, 15),
    "float8_e4m3fnuz": (3, 8),
    "float8_e5m2fnuz": (2, 16),
    "float8_e8m0fnu": (0, 127),
}


@cache
def _float8_values(dtype: str) -> Array:
    """Return the values of all 256 numbers of a dtype."""
    bits = np.arange(256)
    if dtype == "float8_e8m0fnu":
        return np.where(bits < 255, np.ldexp(1.0, bits - 127), np.nan).astype("float32")
    mantissa, bias = _FLOAT8[dtype]
    exponent = (bits & 127) >> mantissa
    fraction = bits & ((1 << mantissa) - 1)
    whole = np.where(
        exponent > 0,
        fraction + (1 << mantissa),
        fraction,
    )
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


def _round_to_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (
        bits + (((bits >> 16) & 1) + 0x7FFF)
    ) >> 16  # to the nearest, ties to even
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
