"""Splits a partition into parts that can be delegates, none of which depends on itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

TAG = "delegation_tag"


def split_partition(module: GraphModule, nodes: Sequence[Node]) -> list[list[Node]]:
    """Split nodes of a graph into connected parts without a way out of a part and back into it.

    All other partitions, which `delegation_tag` marks, count as one node each. Each node gets the
    number of times that a path from the partition to it leaves the partition and comes back.
    Numbers never fall along a path, so nodes of one number have no way out and in again. A node
    that nothing outside reads goes with the first that reads it: the transposed weight of a layer
    with its product, wherever that stands.
    """
    own = set(nodes)
    order = _sort_by_dependence(module, own)
    returns: dict[Node, int] = {}
    reached: dict[Any, int] = {}  # by node or tag: the highest number on a path to it, or -1
    for group in order:
        if len(group) == 1 and group[0] in own:
            node = group[0]
            inside = [returns[i] for i in node.all_input_nodes if i in own]
            outside = [reached[_unit(i, own)] + 1 for i in node.all_input_nodes if i not in own]
            returns[node] = max([0, *inside, *outside])
        else:
            before = [i for node in group for i in node.all_input_nodes if i not in group]
            numbers = [returns[i] if i in own else reached[_unit(i, own)] for i in before]
            reached[_unit(group[0], own)] = max([-1, *numbers])
    for group in reversed(order):
        if len(group) == 1 and group[0] in own and own.issuperset(group[0].users):
            returns[group[0]] = min((returns[u] for u in group[0].users), default=returns[group[0]])
    return _connect(nodes, returns)


def _unit(node: Node, own: Collection[Node]) -> Any:
    """Return the partition that a node belongs to, or the node itself."""
    tag = node.meta.get(TAG)
    return node if tag is None or node in own else tag


def _sort_by_dependence(module: GraphModule, own: Collection[Node]) -> list[list[Node]]:
    """Return the nodes in an order of dependence, with every other partition as one group."""
    groups: dict[Any, list[Node]] = defaultdict(list)
    for node in module.graph.nodes:
        groups[_unit(node, own)].append(node)
    waiting = {
        unit: {_unit(i, own) for node in group for i in node.all_input_nodes} - {unit}
        for unit, group in groups.items()
    }
    readers: dict[Any, list[Any]] = defaultdict(list)
    for unit, needs in waiting.items():
        for need in needs:
            readers[need].append(unit)
    ready = [unit for unit, needs in waiting.items() if not needs]
    order = []
    while ready:
        unit = ready.pop()
        order.append(groups[unit])
        for reader in readers[unit]:
            waiting[reader].discard(unit)
            if not waiting[reader]:
                ready.append(reader)
    assert len(order) == len(groups), "the partitioner's own partitions depend on each other"
    return order


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
