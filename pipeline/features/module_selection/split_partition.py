"""Splits a partition into parts that can be delegates: no part may depend on itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from torch.fx import GraphModule, Node

from pipeline.program.operators import TAG
from pipeline.store.errors import PipelineError


def split_partition(module: GraphModule, nodes: Sequence[Node]) -> list[list[Node]]:
    """Split nodes of a graph into connected parts, with no path out of a part and back into it.

    Every other partition, marked by `delegation_tag`, counts as one node. Each node is numbered by
    the most times that a path from the partition to it leaves the partition and comes back. Numbers
    never fall along a path, so no path leaves the nodes of one number and comes back to them. A
    node that is read only inside the partition takes the number of its first reader: the transposed
    weight of a layer goes with its product, wherever that is.

    Raises PipelineError if other partitions depend on each other in a cycle.
    """
    members = set(nodes)

    def unit(node: Node) -> Any:
        """Return the other partition that a node belongs to, or else the node itself."""
        tag = node.meta.get(TAG)
        if tag is None or node in members:
            return node
        return tag

    inputs: dict[Any, list[Node]] = defaultdict(list)
    for node in module.graph.nodes:
        key = unit(node)
        inputs[key] += [
            argument for argument in node.all_input_nodes if unit(argument) != key
        ]
    order = _sort_units(
        {key: map(unit, arguments) for key, arguments in inputs.items()}
    )
    # For an outside node or another partition: the highest number on any path to it, or -1.
    numbers: dict[Any, int] = {}
    for key in order:
        if key in members:
            number = 0
        else:
            number = -1
        for argument in inputs[key]:
            comes_back = key in members and argument not in members
            number = max(number, numbers[unit(argument)] + comes_back)
        numbers[key] = number
    # Nodes that only this partition reads can move to the part that reads them.
    for key in reversed(order):
        if key in members and members.issuperset(key.users):
            numbers[key] = min(
                (numbers[user] for user in key.users), default=numbers[key]
            )
    return _connect(nodes, {node: numbers[node] for node in nodes})


def _sort_units(inputs: Mapping[Any, Iterable[Any]]) -> list[Any]:
    try:
        return list(TopologicalSorter(inputs).static_order())
    except CycleError as error:
        raise PipelineError(
            "the partitioner's partitions depend on each other in a cycle"
        ) from error


def _connect(nodes: Sequence[Node], number: Mapping[Node, int]) -> list[list[Node]]:
    """Group nodes of equal number into connected parts, in the order of the graph."""
    parts: list[list[Node]] = []
    placed: set[Node] = set()
    for first in nodes:
        if first in placed:
            continue
        part = {first}
        queue = [first]
        while queue:
            node = queue.pop()
            for neighbour in (*node.all_input_nodes, *node.users):
                if neighbour in part or number.get(neighbour) != number[first]:
                    continue
                part.add(neighbour)
                queue.append(neighbour)
        placed |= part
        parts.append([node for node in nodes if node in part])
    return parts
