"""How much of a lowered method its delegates run, and what they leave; over control flow too.

ExecuTorch's `get_delegation_info` reads the top-level graph only and counts `getitem`, which moves
no data. Here a node is a call of an operator, in a delegate or out of one.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import get_lowered_submodules
from executorch.exir.memory import alloc
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram

from pipeline.compile.inspect.borders import Border, border_of
from pipeline.compile.inspect.reasons import reason_of
from pipeline.program.graphs import graph_modules
from pipeline.program.operators import modules_of
from pipeline.program.source_lines import source_line


@dataclass(frozen=True)
class Share:
    """What one backend runs: operator calls, distinct operators, delegate calls."""

    nodes: int
    operators: int
    partitions: int


@dataclass(frozen=True)
class Left:
    """A call that is left to portable kernels.

    `place` is that of its node in the source program (`Places`), None where lowering or quantizing
    made it; `module` the innermost that it is from, "" for the method itself; `reason` goes on from
    "it is left because", and is "" where nobody tells.
    """

    operator: str
    place: int | None
    module: str
    reason: str


@dataclass(frozen=True)
class Delegation:
    """Of one method: calls of operators (`nodes`) and distinct operators, without `getitem` and
    constants. What the bodies of control flow call is counted once; there are `subgraphs` of them.

    `delegated_operators` are those with no call outside of delegates. `partitions` are calls of
    delegates by backend; `kernels` the calls of each operator that is a backend's own kernel, by
    backend: neither delegated nor left to portable kernels. Those are in `undelegated`, by
    operator, and one by one in `left`, in the order of the graphs.
    """

    nodes: int
    delegated_nodes: int
    operators: int
    delegated_operators: int
    partitions: dict[str, int] = field(default_factory=dict)
    undelegated: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    backends: dict[str, Share] = field(default_factory=dict)
    subgraphs: int = 0
    left: list[Left] = field(default_factory=list)
    border: Border = field(default_factory=Border)

    def to_json(self) -> dict[str, Any]:
        """Without `kernels` where there are none."""
        return {name: value for name, value in asdict(self).items() if name != "kernels" or value}


class Places:
    """Where the nodes of a lowered program come from: places in the program before lowering, which
    are numbers among `nodes_of` it.

    A place holds for every export of the same program, as a compiled method does, where the line
    that a node stands on may be another by then.

    Args:
        origins: of a program that was quantized, what `origins_of` says of it; places are then
            those in the program before that.
    """

    def __init__(
        self, program: ExportedProgram, origins: Sequence[Mapping[str, int]] | None = None
    ) -> None:
        self._known: dict[tuple[str, int], int] = {}
        numbers = count()
        for number, module in enumerate(graph_modules(program.graph_module)):
            for node in module.graph.nodes:
                place = next(numbers) if origins is None else origins[number].get(node.name)
                if place is not None:
                    self._known[node.name, id(module.graph)] = place

    def of(self, node: torch.fx.Node) -> int | None:
        """None for what was made on the way."""
        ancestors = list(node.meta.get("from_node") or ())
        while ancestors:
            ancestor = ancestors.pop()
            place = self._known.get((ancestor.name, ancestor.graph_id))
            if place is not None:
                return place
            ancestors += ancestor.from_node
        return None


def origins_of(quantized: ExportedProgram, program: ExportedProgram) -> list[dict[str, int]]:
    """For each graph of a quantized program the places of its nodes, by name, in the program that
    it was made of. Names outlive being saved and loaded; the number of nodes need not."""
    places = Places(program)
    return [
        {node.name: place for node in own.graph.nodes if (place := places.of(node)) is not None}
        for own in graph_modules(quantized.graph_module)
    ]


def origin_places(
    quantized: ExportedProgram, origins: Sequence[Mapping[str, int]]
) -> dict[int, int]:
    """By the place of a node of a quantized program, that of the node that it was made of."""
    names = (
        (number, node.name)
        for number, own in enumerate(graph_modules(quantized.graph_module))
        for node in own.graph.nodes
    )
    return {
        place: origins[number][name]
        for place, (number, name) in enumerate(names)
        if name in origins[number]
    }


def nodes_of(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Those of its graph, then those of its control flow."""
    for graph_module in graph_modules(program.graph_module):
        yield from graph_module.graph.nodes


def count_delegation(
    program: ExportedProgram,
    namespaces: Mapping[str, str] | None = None,
    places: Places | None = None,
    otherwise: str = "",
) -> Delegation:
    """Counts over a program in edge dialect that has been lowered.

    Args:
        namespaces: of operators that are a backend's own kernels, each with the backend's id.
        places: those of the method's nodes; without it, no place is told.
        otherwise: why a call is left of which no partitioner said anything.
    """
    owners = namespaces or {}
    calls: list[tuple[str, torch.fx.Node, str]] = []
    inside: dict[str, Counter[str]] = {}
    partitions: Counter[str] = Counter()
    graphs = 0
    for graph_module, around in _with_modules(program.graph_module):
        graphs += 1
        calls += ((name, node, around) for name, node in _calls(graph_module.graph))
        for _, delegate, _ in get_lowered_submodules(graph_module):
            partitions[delegate.backend_id] += 1
            own = list(graph_modules(delegate.original_module.graph_module))
            graphs += len(own) - 1
            names = (name for each in own for name, _ in _calls(each.graph))
            inside.setdefault(delegate.backend_id, Counter()).update(names)
    outside = Counter(name for name, _, _ in calls)
    delegated = sum(inside.values(), Counter())
    kernels: dict[str, dict[str, int]] = {}
    for name, number in sorted(outside.items()):
        owner = owners.get(name.partition(".")[0])
        if owner is not None:
            kernels.setdefault(owner, {})[name] = number
    ours = {name for each in kernels.values() for name in each}
    return Delegation(
        nodes=outside.total() + delegated.total(),
        delegated_nodes=delegated.total(),
        operators=len(outside.keys() | delegated.keys()),
        delegated_operators=len(delegated.keys() - outside.keys()),
        partitions=dict(sorted(partitions.items())),
        undelegated={name: n for name, n in sorted(outside.items()) if name not in ours},
        kernels=kernels,
        backends={
            backend: Share(own.total(), len(own), partitions[backend])
            for backend, own in sorted(inside.items())
        },
        subgraphs=graphs - 1,
        left=[
            Left(
                name,
                places.of(node) if places is not None else None,
                _module_of(node) or around,
                reason_of(node) or otherwise,
            )
            for name, node, around in calls
            if name not in ours
        ],
        border=border_of(program.graph_module),
    )


def told_delegation(
    delegation: Mapping[str, Any], program: ExportedProgram, root: Path
) -> dict[str, Any]:
    """What a manifest says of a method's delegation as reports have it: with `line`, such as
    `x + y  # models/small.py:12, in Small.forward` or "", in place of each `place`.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = list(nodes_of(program))

    def told(left: Mapping[str, Any]) -> dict[str, str]:
        line = None if left["place"] is None else source_line(nodes[left["place"]], root)
        return {
            "operator": left["operator"],
            "line": str(line or ""),
            "module": left["module"],
            "reason": left["reason"],
        }

    return {**delegation, "left": [told(each) for each in delegation["left"]]}


def handle_positions(
    lowered: ExportedProgram, places: Places, backends: Collection[str]
) -> list[tuple[int, int]]:
    """The debug handles of what delegates of these backends run, each with the place of the node
    that it comes from. Handles of nodes that lowering made are left out. Sorted by handle."""
    found: dict[int, int] = {}
    for graph_module in graph_modules(lowered.graph_module):
        for _, delegate, _ in get_lowered_submodules(graph_module):
            if delegate.backend_id not in backends:
                continue
            for node in nodes_of(delegate.original_module):
                handle, place = node.meta.get("debug_handle"), places.of(node)
                if type(handle) is int and place is not None:
                    found[handle] = place
    return sorted(found.items())


def _with_modules(
    module: torch.fx.GraphModule, around: str = ""
) -> Iterator[tuple[torch.fx.GraphModule, str]]:
    """A graph and those of its control flow, each with the module that it stands in: torch.export
    does not tell it of the nodes of a branch."""
    yield module, around
    for _, body, flow in get_control_flow_submodules(module):
        yield from _with_modules(body, _module_of(flow) or around)


def _module_of(node: torch.fx.Node) -> str:
    """The innermost."""
    return (modules_of(node) or [""])[-1]


def _calls(graph: torch.fx.Graph) -> Iterator[tuple[str, torch.fx.Node]]:
    """With names like `aten.linear.default`. Control flow itself is instructions, not operators,
    and scratch memory is planned, not called for."""
    for node in graph.nodes:
        target = node.target
        moves = target in (operator.getitem, alloc) or isinstance(target, HigherOrderOperator)
        if node.op == "call_function" and not moves:
            named = hasattr(target, "name")
            yield target.name().replace("::", ".") if named else target.__name__, node
