"""Finds the parts of outputs that a program concatenates, such as a detector's boxes and scores.

Each part can lose all its values unnoticed: a part with large values takes up the quantized range,
and its power hides the noise of the others.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import count, pairwise
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

from pipeline.features.quantization_loss.labels import find_output_values
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name, only_moves

_JOINING = frozenset({"cat", "stack"})
_ROUNDING = frozenset(
    {"dequantize_per_channel", "dequantize_per_tensor"}
    | {"quantize_per_channel", "quantize_per_tensor", "_to_copy", "to"}
)
_SIZE = 4  # of a dynamic dimension
_MOST_PARTS = 64
_MOST_VALUES = 1 << 24

# The index of a part: all of each dimension but one.
Part = tuple[slice, ...]


def find_parts(program: ExportedProgram) -> dict[int, list[Part]]:
    """Return the parts of each output that has several, by the place in `Source.outputs`.

    A part is a range of one dimension, whose size must be static.
    """
    if not any(base_name(node) in _JOINING for node in iter_nodes(program)):
        return {}
    origins = _Origins()
    all_parts = {}
    for place, value in enumerate(find_output_values(program)):
        fake = value.meta.get("val") if isinstance(value, Node) else None
        if not isinstance(fake, Tensor):
            continue
        if math.prod(map(_as_number, fake.shape)) > _MOST_VALUES:
            continue
        if parts := _split(origins.find(value), fake.shape):
            all_parts[place] = parts
    return all_parts


def name_part(part: Part) -> str:
    """Return a part's index as in Python, such as `[:, 4:24]`."""
    texts = []
    for index in part:
        is_all = index.start is None
        texts.append(":" if is_all else f"{index.start}:{index.stop}")
    return f"[{', '.join(texts)}]"


def _split(origins: Tensor, shape: torch.Size) -> list[Part]:
    """Return the ranges of each dimension that come from different tensors."""
    parts = []
    for dimension, size in enumerate(shape):
        if isinstance(size, SymInt):
            continue
        rows = origins.movedim(dimension, 0).unsqueeze(-1).flatten(1)
        differs = (rows[1:] != rows[:-1]).any(1)
        bounds = [0, *(differs.nonzero().flatten() + 1).tolist(), size]
        if 1 < len(bounds) - 1 <= _MOST_PARTS:
            before = (slice(None),) * dimension
            for start, stop in pairwise(bounds):
                parts.append((*before, slice(start, stop)))
    return parts


class _Origins:
    """Computes which tensor each element of a value comes from, as a tensor of numbers."""

    def __init__(self) -> None:
        self._numbers = count()
        self._origins: dict[Node, Tensor] = {}

    def find(self, node: Node) -> Tensor:
        if node not in self._origins:
            self._origins[node] = self._follow(node)
        return self._origins[node]

    def _follow(self, node: Node) -> Tensor:
        shape = [_as_number(size) for size in node.meta["val"].shape]
        name = base_name(node)
        origins = None
        if name in _ROUNDING:
            origins = self.find(node.all_input_nodes[0])
        elif name in _JOINING or only_moves(node):
            args, kwargs = map_arg((node.args, node.kwargs), self._evaluate)
            # The operator may refuse the sizes that stand for dynamic ones.
            with suppress(RuntimeError, IndexError, TypeError, ValueError):
                origins = node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(origins, Tensor) and list(origins.shape) == shape:
            return origins
        # Takes the memory of one value, however large the tensor is.
        return torch.tensor(next(self._numbers)).expand(shape)

    def _evaluate(self, node: Node) -> Any:
        value = node.meta["val"]
        return self.find(node) if isinstance(value, Tensor) else _as_number(value)


def _as_number(size: Any) -> Any:
    """Return a size, with `_SIZE` in place of each symbol."""
    if not isinstance(size, SymInt):
        return size
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, _SIZE)))
