"""Keeps the contents of memory from before a run, and restores the memory that the run changes.

Only memory that is written to is copied, before the first write, so a model's weights are not.
Memory that the run itself allocates is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def memory_key(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key for a tensor's memory, equal for all views of it."""
    # Only strided tensors have a storage.
    if tensor.layout is not torch.strided:
        return ("object", id(tensor))
    return (_address(tensor),)


def storage_key(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key for a tensor's values, equal for tensors of the same memory and layout."""
    if tensor.layout is not torch.strided:
        return memory_key(tensor)
    return (
        _address(tensor),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.dtype,
    )


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class StorageKeeper:
    """The memory that a run changed, except for memory that it allocated itself."""

    def __init__(self) -> None:
        self._allocated: set[int] = set()
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def before_write(self, tensors: Sequence[Tensor]) -> None:
        """Copy the memory of tensors that are about to be written to."""
        for tensor in tensors:
            if tensor.layout is torch.strided and not tensor.is_meta:
                address = _address(tensor)
                if address not in self._allocated and address not in self._before:
                    storage = tensor.untyped_storage()
                    self._before[address] = storage, storage.clone()

    def after_call(self, result: Any, arguments: Sequence[Tensor]) -> None:
        """Record the memory of an operator's results, except memory that arguments share."""
        argument_addresses = {
            _address(t) for t in arguments if t.layout is torch.strided
        }
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                address = _address(leaf)
                if address not in argument_addresses:
                    self._allocated.add(address)

    def restore(self) -> None:
        """Restore the contents from before the run."""
        for storage, before in self._before.values():
            # Operators such as `resize_` change the size of a storage.
            if storage.nbytes() != before.nbytes():
                storage.resize_(before.nbytes())
            storage.copy_(before)
        self._before.clear()
