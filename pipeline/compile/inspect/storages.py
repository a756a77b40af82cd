"""Storages of tensors as numpy arrays, and a listener for tensors that are described."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch.utils._mode_utils import no_dispatch

from pipeline.compile.inspect.arrays import Array, View
from pipeline.store.digest import Digest

# Called with a tensor that is described, and the digest of its logical bytes.
Listener = Callable[[torch.Tensor, Digest], None]
LISTENER: ContextVar[Listener | None] = ContextVar(
    "listener to descriptions", default=None
)


def storage_bytes(tensor: torch.Tensor) -> Array:
    """Return the bytes of a tensor's whole storage, without a copy."""
    # Not `tensor.numpy()`, which gives only the view and refuses dtypes that numpy lacks.
    with no_dispatch():  # no mode needs to see this
        flat = torch.empty(0, dtype=torch.uint8)
        array: Array = flat.set_(tensor.untyped_storage()).numpy()
    return array


def view_of(tensor: torch.Tensor, step: int = 0) -> View:
    """Return the place of a tensor in its storage."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return View(
        step,
        dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
    )


def note_described(tensor: torch.Tensor, base: Digest) -> None:
    """Report a tensor that is described to the listener, if there is one."""
    listener = LISTENER.get()
    if listener is not None:
        listener(tensor, base)
