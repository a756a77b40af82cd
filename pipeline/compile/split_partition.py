"""Splits a partition into parts that can be delegates, none of which depends on itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from torch.fx import GraphModule, Node

from pipeline.store.errors import PipelineError

TAG = "delegation_tag"


def split_partition(module: GraphModule, nodes: Sequence[Node]) -> list[list[Node]]:
    """Split nodes of a graph into connected parts without a way out of a part and back into it.

    All other partitions, which `delegation_tag` marks, count as one node each. Each node gets the
    number of times that a path from the partition to it leaves the partition and comes back.
    Numbers never fall along a path, so nodes of one number have no way out and in again. A node
    that nothing outside reads goes with the first that reads it: the transposed weight of a layer
    with its product, wherever that stands.

    Raises PipelineError where other partitions depend on each other in a circle.
    """
    own = set(nodes)

    def unit(node: Node) -> Any:
        """Return the partition that a node belongs to, or the node itself."""
        tag = node.meta.get(TAG)
        return node if tag is None or node in own else tag

    groups: dict[Any, list[Node]] = defaultdict(list)
    for node in module.graph.nodes:
        groups[unit(node)].append(node)
    inputs = {
        each: [i for node in group for i in node.all_input_nodes if unit(i) != each]
        for each, group in groups.items()
    }
    sorter = TopologicalSorter({each: map(unit, before) for each, before in inputs.items()})
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        raise PipelineError(
            "the partitioner's partitions depend on each other in a circle"
        ) from error
    # Of a node outside or another partition: the highest number on a path to it, or -1.
    numbers: dict[Any, int] = {}
    for each in order:
        if each in own:
            numbers[each] = max([0, *(numbers[unit(i)] + (i not in own) for i in inputs[each])])
        else:
            numbers[each] = max([-1, *(numbers[unit(i)] for i in inputs[each])])
    for each in reversed(order):
        if each in own and own.issuperset(each.users):
            numbers[each] = min((numbers[user] for user in each.users), default=numbers[each])
    return _connect(nodes, {node: numbers[node] for node in nodes})


def _connect(nodes: Sequence[Node], number: Mapping[Node, int]) -> list[list[Node]]:
    """Group nodes of one number that are connected by edges between such, in the graph's order."""
    parts: list[list[Node]] = []
    placed: set[Node] = set()
    for first in nodes:
        if first in placed:
            continue
        part, queue = {first}, [first]
        while queue:
            node = queue.pop()
            for other in (*node.all_input_nodes, *node.users):
                if other in number and number[other] == number[first] and other not in part:
                    part.add(other)
                    queue.append(other)
        placed |= part
        parts.append([node for node in nodes if node in part])
    return parts
