"""Finds the operator at which an output stops depending on the inputs.

The source runs node by node on two input sets. The operator is the first one, among the nodes that
the output is computed from, whose inputs move by more than the output does, and whose own value
does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import node_label
from pipeline.program.source_lines import source_line
from pipeline.validate.metrics import compare, greatest_magnitude
from pipeline.validate.node_values import NodeValues

_TIMES = 4.0  # times the movement of the output; only more than that counts as movement


def describe_standstill(
    source: NodeValues,
    output: Node,
    first_inputs: Sequence[Any],
    second_inputs: Sequence[Any],
    root: Path | None = None,
) -> str:
    """Return the operator at which an output stops moving, with its module and line.

    Returns "" if none is found, for example if control flow hides it.

    Args:
        output: the node of the output in the source's program.
        first_inputs, second_inputs: flat inputs.

    Raises whatever an operator raises.
    """
    node = _find_standstill(
        output, _measure_movements(source, output, first_inputs, second_inputs)
    )
    if node is None:
        return ""
    line = source_line(node, root)
    where = " in ".join(filter(None, (node_label(node), innermost_module(node))))
    if line:
        return f"{where} ({line})"
    return where


def _measure_movements(
    source: NodeValues,
    output: Node,
    first_inputs: Sequence[Any],
    second_inputs: Sequence[Any],
) -> dict[Node, float]:
    """Return how far each node that the output is computed from moves, in the order of the graph.

    Bodies of control flow, which have no values, are left out.
    """
    ancestors = find_ancestors(output)
    places = {
        place: node
        for place, node in enumerate(source.nodes)
        if node in ancestors and node.op != "get_attr"
    }
    values = []
    for inputs in (first_inputs, second_inputs):
        source.reset()
        source.call(inputs, places)
        values.append(source.values)
    before, after = values
    return {
        node: _measure_share(after[place], before[place])
        for place, node in places.items()
        if place in before and place in after
    }


def _find_standstill(output: Node, movements: dict[Node, float]) -> Node | None:
    enough = _TIMES * movements.get(output, 0.0)
    for node, share in movements.items():
        if node.op != "call_function" or share > enough:
            continue
        if any(
            movements.get(argument, 0.0) > enough for argument in node.all_input_nodes
        ):
            return node
    return None


def find_ancestors(node: Node) -> set[Node]:
    """Return a node and all nodes that it is computed from."""
    ancestors = {node}
    waiting = [node]
    while waiting:
        for argument in waiting.pop().all_input_nodes:
            if argument not in ancestors:
                ancestors.add(argument)
                waiting.append(argument)
    return ancestors


def _measure_share(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return how far apart values of a node are, as a share of their greatest magnitude."""
    greatest = 0.0
    pairs = zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=False)
    for value, reference in pairs:
        if not isinstance(reference, Tensor | int | float):
            continue
        error = compare(value, reference)
        if error.mismatch or error.disagreeing:
            return 1.0
        signal = greatest_magnitude(torch.as_tensor(reference))
        greatest = max(
            greatest, error.max_abs / signal if signal else float(error.max_abs > 0)
        )
    return greatest
