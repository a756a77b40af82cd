"""Views of tensors: the same dtype and sizes in another memory layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Returns a tensor in another layout, or None if the view doesn't apply to it.
View = Callable[[torch.Tensor], torch.Tensor | None]


def lay_out_by(view: View, value: Any) -> Any:
    """Return the view of a tensor if its layout differs, otherwise the value itself."""
    if not isinstance(value, torch.Tensor):
        return value
    relaid = view(value)
    if relaid is None:
        return value
    strides = zip(value.shape, value.stride(), relaid.stride(), strict=True)
    for size, stride, new_stride in strides:
        # The stride of a dimension of size 1 has no meaning.
        if size > 1 and stride != new_stride:
            return relaid
    return value


def _transposed(value: torch.Tensor) -> torch.Tensor | None:
    if value.ndim < 2:
        return None
    return value.mT.contiguous().mT


def _stepped(value: torch.Tensor) -> torch.Tensor | None:
    """Interleave the values with the reversed ones, and return a view of every second value."""
    if value.ndim == 0 or value.shape[-1] < 2 or not value.numel():
        return None
    reverse = value.flip(-1)
    interleaved = torch.stack((value, reverse), -1).flatten(-2)
    return interleaved[..., ::2]


def expand_first(value: torch.Tensor) -> torch.Tensor | None:
    """Return a view that repeats the first slice along the first dimension with more than one."""
    if not value.numel():
        return None
    for dimension, size in enumerate(value.shape):
        if size > 1:
            first = value.narrow(dimension, 0, 1)
            return first.expand(value.shape)
    return None


def _other_format(value: torch.Tensor) -> torch.Tensor | None:
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.ndim)
    if memory_format is None:
        return None
    if value.is_contiguous(memory_format=memory_format):
        memory_format = torch.contiguous_format
    return value.contiguous(memory_format=memory_format)


STRIDED_VIEWS: dict[str, View] = {
    "transposed": _transposed,
    "every second value": _stepped,
    "other memory format": _other_format,
}
