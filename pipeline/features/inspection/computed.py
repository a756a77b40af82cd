"""Finds the weights that XNNPACK stores in place of a program's own: folded or reordered ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from pipeline.compile.inspect.constants import list_constants
from pipeline.program.operators import base_name

_NORMS = ("native_batch_norm", "_native_batch_norm_legit_no_training")


def iter_computed(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights that XNNPACK derives from convolutions and linear layers, by name.

    XNNPACK folds a batch norm into the operator before it, and stores the weight of a transposed
    convolution group by group.
    """
    values = list_constants(program)
    for node in program.graph.nodes:
        if base_name(node) not in ("convolution", "linear"):
            continue
        norms = [user for user in node.users if base_name(user) in _NORMS]
        weight = values.get(node.args[1])
        # If anything else used the result before the norm, XNNPACK wouldn't fold the norm in.
        if norms and len(node.users) == 1:
            for name, tensor in _fold(node, norms[0], values):
                yield name, _swap_channels(node, tensor)
        elif weight is not None and _is_grouped(node):
            yield weight[0], _swap_channels(node, weight[1])


def _fold(
    before: Node, norm: Node, values: Mapping[Node, tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield an operator's weight and bias after folding in the batch norm that follows it."""
    # backends/xnnpack/_passes/fuse_batch_norm.py

    def find(argument: Any) -> tuple[str, torch.Tensor | None]:
        return values.get(argument, ("", None))

    weight = before.args[1]
    bias = None
    if len(before.args) > 2:
        bias = before.args[2]
    name, kernel = find(weight)
    bias_name, offset = find(bias)
    scale, shift, mean, variance = (find(argument)[1] for argument in norm.args[1:5])
    # Statistics that the graph computes have no values to fold.
    if kernel is None or mean is None or variance is None:
        return
    # Argument order of torch.nn.utils.fusion: running statistics, then the norm's weight and bias.
    arguments: tuple[Any, ...] = (
        kernel,
        offset,
        mean,
        variance,
        norm.args[-1],
        scale,
        shift,
    )
    if base_name(before) == "linear":
        fused = fuse_linear_bn_weights(*arguments)
    else:
        fused = fuse_conv_bn_weights(*arguments, before.args[6])
    yield name, fused[0]
    # A norm shifts, so its operator gets a bias even if it had none.
    if fused[1] is not None:
        yield bias_name or f"{name.removesuffix('weight')}bias", fused[1]


def _is_grouped(node: Node) -> bool:
    """Return whether a node is a transposed convolution with several groups."""
    return base_name(node) == "convolution" and bool(node.args[6]) and node.args[8] != 1


def _swap_channels(node: Node, weight: torch.Tensor) -> torch.Tensor:
    """Return a weight with its channels in the order in which XNNPACK stores them.

    Only weights of grouped transposed convolutions are reordered; any other tensor is returned as
    it is.
    """
    # `get_serialized_buffer_index` of backends/xnnpack/operators/node_visitor.py
    if not _is_grouped(node) or weight.ndim < 3:
        return weight
    return weight.unflatten(0, (node.args[8], -1)).transpose(1, 2).flatten(0, 1)
