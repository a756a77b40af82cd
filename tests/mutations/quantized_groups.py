"""Damages of weights of 4 bits, which have a scale for each group, and of quantized embeddings.

Each changes a quantized program in place, and returns what it did; None where there is nothing
that it can be done to.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor
from torch.fx import GraphModule

from pipeline.program.operators import base_name

from .quantized_graph import Weight, find_calls, find_weights, pick


def groups_swapped(module: GraphModule, random: Random) -> str | None:
    weight = pick(random, (w for w in find_weights(module) if _groups(w) > 1))
    if weight is None:
        return None
    parts = weight.values.chunk(_groups(weight), 1)
    weight.set_values(torch.cat([*parts[1:], parts[0]], 1))
    return f"{weight.name}: each group has the integers of the next"


def group_scales_swapped(module: GraphModule, random: Random) -> str | None:
    weight = pick(random, (w for w in find_weights(module) if _groups(w) > 1))
    if weight is None:
        return None
    weight.set_scale(weight.scale.roll(1, 1))
    return f"{weight.name}: each group has the scale of the one before"


def nibbles_swapped(module: GraphModule, random: Random) -> str | None:
    """Unpack two integers of 4 bits in the wrong order."""
    weight = pick(random, (w for w in find_weights(module) if _groups(w)))
    if weight is None:
        return None
    weight.set_values(weight.values.unflatten(1, (-1, 2)).flip(2).flatten(1))
    return f"{weight.name}: nibbles swapped"


def table_rows_shifted(module: GraphModule, random: Random) -> str | None:
    return _damage_table(module, 0, lambda rows: rows.roll(1, 0), "rows moved by one")


def table_rows_shuffled(module: GraphModule, random: Random) -> str | None:
    def shuffle(rows: Tensor) -> Tensor:
        return rows[torch.tensor(random.sample(range(len(rows)), len(rows)))]

    return _damage_table(module, 0, shuffle, "rows shuffled")


def table_scales_shifted(module: GraphModule, random: Random) -> str | None:
    return _damage_table(module, 1, lambda scales: scales.roll(1, 0), "scales moved by one row")


def table_nibbles_swapped(module: GraphModule, random: Random) -> str | None:
    def swap(packed: Tensor) -> Tensor:
        return (packed >> 4) | (packed << 4)

    return _damage_table(module, 0, swap, "nibbles swapped")


def _damage_table(
    module: GraphModule, place: int, change: Callable[[Tensor], Tensor], what: str
) -> str | None:
    for node in find_calls(module, "embedding_4bit"):
        tensor = module.get_buffer(str(node.args[place].target))
        tensor.data.copy_(change(tensor))
        return f"embedding: {what}"
    return None


def _groups(weight: Weight) -> int:
    """Return how many groups a row of a 4-bit weight has; 0 for others."""
    affine = base_name(weight.nodes[0]) == "dequantize_affine"
    return weight.scale.shape[1] if affine else 0


IN_GROUPS = {
    function.__name__: function
    for function in (
        groups_swapped,
        group_scales_swapped,
        nibbles_swapped,
        table_rows_shifted,
        table_rows_shuffled,
        table_scales_shifted,
        table_nibbles_swapped,
    )
}
