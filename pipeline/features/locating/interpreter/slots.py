"""The values of a loaded method: tensors in planned memory, and lists of values."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from executorch.exir import schema
from executorch.exir.tensor import stride_from_dim_order

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.devices.bindings import DTYPES


def allocate(size: int) -> torch.Tensor:
    """Allocate `size` bytes of memory, all zero."""
    return torch.zeros(size, dtype=torch.uint8)


class Slot:
    """A tensor of a plan: its place in memory, and its current sizes.

    Attributes:
        memory: a tensor of bytes, which other slots may share.
        offset: the place in that memory.
        most: the largest sizes that the plan has room for.
    """

    def __init__(self, tensor: schema.Tensor) -> None:
        self.dtype = DTYPES[int(tensor.scalar_type)]
        self.most = tuple(tensor.sizes)
        self.order = tuple(tensor.dim_order)
        self.fixed = tensor.shape_dynamism == schema.TensorShapeDynamism.STATIC
        self.unbound = (
            tensor.shape_dynamism == schema.TensorShapeDynamism.DYNAMIC_UNBOUND
        )
        self.sizes = self.most
        self.memory: torch.Tensor | None = None
        self.offset = 0

    def size_in_bytes(self) -> int:
        return math.prod(self.most) * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        """Return the tensor itself rather than a copy: writing to it writes to its memory."""
        if self.memory is None:
            self.memory = allocate(self.size_in_bytes())
        strides = stride_from_dim_order(self.sizes, self.order)
        storage = self.memory.untyped_storage()
        place = self.offset // self.dtype.itemsize
        return torch.empty(0, dtype=self.dtype).set_(
            storage, place, self.sizes, strides
        )

    def resize(self, sizes: Sequence[int]) -> None:
        """Change the sizes.

        Raises:
            RefusalError: the plan has no room for them.
        """
        sizes = tuple(sizes)
        if not self._has_room(sizes):
            kind = "exactly" if self.fixed else "at most"
            raise RefusalError(
                f"a tensor of sizes {list(sizes)}, {kind} {list(self.most)} planned"
            )
        self.sizes = sizes
        if self.unbound:
            self.memory, self.offset = None, 0
            self.most = sizes

    def _has_room(self, sizes: tuple[int, ...]) -> bool:
        if len(sizes) != len(self.most):
            return False
        if self.unbound:
            return True
        if self.fixed:
            return sizes == self.most
        return all(map(operator.le, sizes, self.most))

    def assign(self, value: torch.Tensor) -> None:
        """Copy a tensor here.

        Raises:
            RefusalError: its dtype or sizes don't fit.
        """
        if value.dtype != self.dtype:
            raise RefusalError(f"a tensor of {value.dtype}, must be {self.dtype}")
        self.resize(value.shape)
        self.tensor().copy_(value)

    def share(self, source: Slot, sizes: Sequence[int]) -> None:
        """Use the memory of another slot, with other sizes."""
        source.tensor()  # allocates its memory
        self.memory, self.offset = source.memory, source.offset
        self.resize(sizes)


class RefusalError(DelegateError):
    """A plan, an operator or an input that can't be run; the message says why."""


class ValueList(tuple[int, ...]):
    """A list in a plan: the indices of its members among the values; -1 stands for None."""
