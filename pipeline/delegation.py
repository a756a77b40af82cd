"""How much of a lowered method its delegates run, counted over control-flow sub-graphs too.

ExecuTorch's `get_delegation_info` reads the top-level graph only and counts `getitem`, which moves
no data. Here a node is a call of an operator, in a delegate or out of one.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule, get_lowered_submodules
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram

from pipeline.graphs import graph_modules


@dataclass(frozen=True)
class Delegation:
    """Counts of operator calls. `undelegated` maps operator names to calls left to portable
    kernels; `partitions` maps backend ids to numbers of delegate calls."""

    nodes: int
    delegated_nodes: int
    operators: int
    delegated_operators: int
    partitions: dict[str, int] = field(default_factory=dict)
    undelegated: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def count_delegation(program: ExportedProgram) -> Delegation:
    """Counts over a program in edge dialect that has been lowered."""
    outside: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    partitions: Counter[str] = Counter()
    for graph_module in graph_modules(program.graph_module):
        outside.update(_operators(graph_module.graph))
        for _, lowered, _ in get_lowered_submodules(graph_module):
            partitions[lowered.backend_id] += 1
            inside.update(_operators_inside(lowered))
    return Delegation(
        nodes=outside.total() + inside.total(),
        delegated_nodes=inside.total(),
        operators=len(outside.keys() | inside.keys()),
        delegated_operators=len(inside.keys() - outside.keys()),
        partitions=dict(sorted(partitions.items())),
        undelegated=dict(sorted(outside.items())),
    )


def handle_positions(
    lowered: ExportedProgram, source: ExportedProgram, backends: Collection[str]
) -> list[tuple[int, int]]:
    """The debug handles of what delegates of these backends run, each with the place of the node
    that it comes from among all nodes of the program before lowering.

    A place holds for every export of the same program, as a compiled method does, where the line
    that the node stands on may be another by then. Handles of nodes that lowering made are left
    out. Sorted by handle.
    """
    places = {(node.name, id(node.graph)): place for place, node in enumerate(nodes_of(source))}
    found: dict[int, int] = {}
    for graph_module in graph_modules(lowered.graph_module):
        for _, delegate, _ in get_lowered_submodules(graph_module):
            if delegate.backend_id not in backends:
                continue
            for node in nodes_of(delegate.original_module):
                handle, place = node.meta.get("debug_handle"), _origin(node, places)
                if type(handle) is int and place is not None:
                    found[handle] = place
    return sorted(found.items())


def nodes_of(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Those of its graph, then those of its control flow."""
    for graph_module in graph_modules(program.graph_module):
        yield from graph_module.graph.nodes


def _origin(node: torch.fx.Node, places: Mapping[tuple[str, int], int]) -> int | None:
    """The place of a node's ancestor."""
    ancestors = list(node.meta.get("from_node") or ())
    while ancestors:
        ancestor = ancestors.pop()
        place = places.get((ancestor.name, ancestor.graph_id))
        if place is not None:
            return place
        ancestors += ancestor.from_node
    return None


def _operators_inside(lowered: LoweredBackendModule) -> Iterator[str]:
    for graph_module in graph_modules(lowered.original_module.graph_module):
        yield from _operators(graph_module.graph)


def _operators(graph: torch.fx.Graph) -> Iterator[str]:
    """Names like `aten.linear.default`. Control flow itself is instructions, not operators."""
    for node in graph.nodes:
        target = node.target
        moves = target is operator.getitem or isinstance(target, HigherOrderOperator)
        if node.op == "call_function" and not moves:
            yield target.name().replace("::", ".") if hasattr(target, "name") else target.__name__
