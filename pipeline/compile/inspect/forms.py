"""Compute the other forms in which backends and ExecuTorch's emitter store a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pipeline.compile.inspect.arrays import Array, View, logical_bytes, to_float32
from pipeline.store.digest import Digest, hash_bytes

_SMALL = 64  # bytes; smaller tensors are searched for only in their plain form
_FLOATS = ("float", "bfloat")


def find_forms(view: View, read: Callable[[], Array]) -> set[Digest]:
    """Return the digests of a tensor's other forms.

    Args:
        view: the tensor's place in its storage.
        read: returns the tensor's values; called only if the tensor has other forms.
    """
    return {hash_bytes(logical_bytes(form)) for form in _forms(view, read)}


def _forms(view: View, read: Callable[[], Array]) -> Iterator[Array]:
    """Yield the tensor as arrays in the orders in which backends and the emitter store it."""
    dimensions = len(view.sizes)
    rank = range(dimensions)
    turned = not view.is_contiguous
    narrow = view.dtype.startswith(_FLOATS) and view.dtype != "float32"
    # Weights of convolutions, including depthwise and transposed ones.
    convolved = dimensions in (
        3,
        4,
    )
    packed = view.dtype == "int8" and dimensions == 2
    if view.nbytes < _SMALL or not (turned or narrow or convolved or packed):
        return
    values = read()
    if turned:  # ordered by strides, as the emitter stores it
        yield values.transpose(sorted(rank, key=lambda d: (-view.strides[d], d)))
    if narrow:
        values = to_float32(values, view.dtype)  # XNNPACK computes in float32
        yield values
    if convolved:
        places = list(rank[2:])
        yield values.transpose(0, *places, 1)
        yield values.transpose(1, *places, 0)
    if packed and -8 <= values.min() <= values.max() <= 7:
        # Two 4-bit values per byte, the first in the low bits, each raised by 8 (XNNPACK's qc4w).
        raised = np.pad(values, ((0, 0), (0, values.shape[1] % 2))).astype(
            np.uint8
        ) + np.uint8(8)
        yield raised[:, 1::2] << 4 | raised[:, ::2]
