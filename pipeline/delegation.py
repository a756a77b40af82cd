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
from executorch.exir.memory import alloc
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram

from pipeline.graphs import graph_modules


@dataclass(frozen=True)
class Delegation:
    """Counts of operator calls. `undelegated` maps operator names to calls left to portable
    kernels; `partitions` maps backend ids to numbers of delegate calls; `kernels` maps the ids of
    backends without a delegate to the operators of their own kernels and the calls of each, which
    are neither delegated nor left to portable kernels."""

    nodes: int
    delegated_nodes: int
    operators: int
    delegated_operators: int
    partitions: dict[str, int] = field(default_factory=dict)
    undelegated: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Without `kernels` where there are none."""
        return {name: value for name, value in asdict(self).items() if name != "kernels" or value}


def count_delegation(
    program: ExportedProgram, namespaces: Mapping[str, str] | None = None
) -> Delegation:
    """Counts over a program in edge dialect that has been lowered.

    Args:
        namespaces: of operators that are a backend's own kernels, each with the backend's id.
    """
    owners = namespaces or {}
    outside: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    partitions: Counter[str] = Counter()
    for graph_module in graph_modules(program.graph_module):
        outside.update(_operators(graph_module.graph))
        for _, lowered, _ in get_lowered_submodules(graph_module):
            partitions[lowered.backend_id] += 1
            inside.update(_operators_inside(lowered))
    kernels: dict[str, dict[str, int]] = {}
    for name, calls in sorted(outside.items()):
        owner = owners.get(name.partition(".")[0])
        if owner is not None:
            kernels.setdefault(owner, {})[name] = calls
    own = {name for each in kernels.values() for name in each}
    return Delegation(
        nodes=outside.total() + inside.total(),
        delegated_nodes=inside.total(),
        operators=len(outside.keys() | inside.keys()),
        delegated_operators=len(inside.keys() - outside.keys()),
        partitions=dict(sorted(partitions.items())),
        undelegated={name: calls for name, calls in sorted(outside.items()) if name not in own},
        kernels=kernels,
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
    places = places_by_name(source)
    found: dict[int, int] = {}
    for graph_module in graph_modules(lowered.graph_module):
        for _, delegate, _ in get_lowered_submodules(graph_module):
            if delegate.backend_id not in backends:
                continue
            for node in nodes_of(delegate.original_module):
                handle, place = node.meta.get("debug_handle"), origin(node, places)
                if type(handle) is int and place is not None:
                    found[handle] = place
    return sorted(found.items())


def nodes_of(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Those of its graph, then those of its control flow."""
    for graph_module in graph_modules(program.graph_module):
        yield from graph_module.graph.nodes


def places_by_name(program: ExportedProgram) -> dict[tuple[str, int], int]:
    """The place of each node of a program, by its name and the identity of its graph."""
    return {(node.name, id(node.graph)): place for place, node in enumerate(nodes_of(program))}


def origin(node: torch.fx.Node, places: Mapping[tuple[str, int], int]) -> int | None:
    """The place of a node's ancestor, of those that `places_by_name` gave."""
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
    """Names like `aten.linear.default`. Control flow itself is instructions, not operators, and
    scratch memory is planned, not called for."""
    for node in graph.nodes:
        target = node.target
        moves = target in (operator.getitem, alloc) or isinstance(target, HigherOrderOperator)
        if node.op == "call_function" and not moves:
            yield target.name().replace("::", ".") if hasattr(target, "name") else target.__name__
