"""Keeps integer arithmetic out of quantizers: XNNPACK's and Vulkan's turn it into floating point.

They make a float32 tensor of each number that is added or multiplied (`_convert_scalars_to_attrs`,
executorch 1.4.1), so `arange(n) + 0` becomes float, and indexing with it fails with "tensors used
as indices must be long". They quantize only floats, so integers may stay. This can go when upstream
skips them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import GraphModule
    from torchao.quantization.pt2e.quantizer import Quantizer

_Quantizer = TypeVar("_Quantizer", bound="Quantizer")


def keeping_integers(quantizer: _Quantizer) -> _Quantizer:
    """Return a quantizer that leaves operators on integers unchanged."""
    transform = partial(_keep_integers, quantizer.transform_for_annotation)
    quantizer.transform_for_annotation = transform  # type: ignore[method-assign]
    return quantizer


def _keep_integers(
    transform: Callable[[GraphModule], GraphModule], model: GraphModule
) -> GraphModule:
    import torch

    arguments = {}
    for node in model.graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
            arguments[node] = node.args
    transformed = transform(model)
    for node, before in arguments.items():
        if node.args == before:
            continue
        numbers = [
            input_node
            for input_node in node.all_input_nodes
            if input_node.op == "get_attr"
        ]
        node.args = before
        for number in numbers:
            if not number.users:
                transformed.graph.erase_node(number)
                delattr(transformed, number.target)
    transformed.recompile()
    return transformed
