"""Other forms in which backends and ExecuTorch's emitter store a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pipeline.compile.inspect.arrays import Array, View, logical_bytes, to_float32
from pipeline.store.digest import Digest, hash_bytes

_SMALL = 64  # bytes; a smaller tensor is only looked for in its plain form
_FLOATS = ("float", "bfloat")


def find_forms(view: View, read: Callable[[], Array]) -> set[Digest]:
    """Return the digests of a tensor's other forms.

    Args:
        read: returns the tensor's values; called only if it may have other forms.
    """
    return {hash_bytes(logical_bytes(form)) for form in _forms(view, read)}


def _forms(view: View, read: Callable[[], Array]) -> Iterator[Array]:
    """Yield an array for each form in which backends and ExecuTorch's emitter store a tensor.

    The elements of the array, in the order of their indices, are the stored ones.
    """
    dimensions = len(view.sizes)
    rank = range(dimensions)
    turned = not view.is_contiguous
    narrow = view.dtype.startswith(_FLOATS) and view.dtype != "float32"
    # Weights of convolutions, including depthwise and transposed ones.
    convolved = dimensions in (3, 4)
    packed = view.dtype == "int8" and dimensions == 2
    if view.nbytes < _SMALL or not (turned or narrow or convolved or packed):
        return
    values = read()
    if turned:  # in the order of its strides, as it is emitted
        yield values.transpose(sorted(rank, key=lambda d: (-view.strides[d], d)))
    if narrow:
        values = to_float32(values, view.dtype)  # XNNPACK computes in float32
        yield values
    if convolved:
        places = list(rank[2:])
        yield values.transpose(0, *places, 1)
        yield values.transpose(1, *places, 0)
    if packed and -8 <= values.min() <= values.max() <= 7:
        # Four-bit values plus 8, two to a byte, the first in the low bits (XNNPACK's qc4w).
        raised = np.pad(values, ((0, 0), (0, values.shape[1] % 2))).astype(
            np.uint8
        ) + np.uint8(8)
        yield raised[:, 1::2] << 4 | raised[:, ::2]
