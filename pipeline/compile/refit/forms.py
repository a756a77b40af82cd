"""The other forms in which backends and ExecuTorch's emitter store a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.compile.refit.arrays import Array, View, cast, logical_bytes
from pipeline.store.digest import Digest, hash_bytes

_SMALL = 64  # bytes; in smaller ones only the plain form is looked for
_FLOATS = ("float", "bfloat")


def find_forms(values: Array, view: View) -> set[Digest]:
    """Return the digests of the forms of a tensor, given its values and their place."""
    return {hash_bytes(logical_bytes(form)) for form in _forms(values, view)}


def _forms(values: Array, view: View) -> Iterator[Array]:
    """Yield a tensor as backends and ExecuTorch's emitter lay it out, in logical order."""
    if values.nbytes < _SMALL:
        return
    rank = range(values.ndim)
    if not values.flags.c_contiguous and values.ndim:  # by its strides, as it is emitted
        yield values.transpose(sorted(rank, key=lambda d: (-view.strides[d], d)))
    if view.dtype.startswith(_FLOATS) and view.dtype != "float32":
        values = cast(values, view.dtype, "float32")  # in which XNNPACK computes
        yield values
    if values.ndim in (3, 4):  # weights of convolutions, of depthwise and of transposed ones
        places = list(rank[2:])
        yield values.transpose(0, *places, 1)
        yield values.transpose(1, *places, 0)
    if view.dtype == "int8" and values.ndim == 2 and -8 <= values.min() <= values.max() <= 7:
        # Four-bit values, two to a byte, the first one low, raised by 8 (XNNPACK's qc4w).
        raised = np.pad(values, ((0, 0), (0, values.shape[1] % 2))).astype(np.uint8) + np.uint8(8)
        yield raised[:, 1::2] << 4 | raised[:, ::2]
