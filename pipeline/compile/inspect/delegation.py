"""Describes the delegation of a lowered method: what its delegates run, and what they leave.

ExecuTorch's `get_delegation_info` reads the top-level graph only and counts `getitem`, which moves
no data. Here a node is a call of an operator, in a delegate or out of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import PartitionerSpec
from pipeline.compile.inspect.boundaries import Boundary, measure_boundary
from pipeline.compile.inspect.reasons import format_reason
from pipeline.program.graphs import (
    NodePlaces,
    called_delegate,
    control_flow_bodies,
    graph_modules,
    iter_nodes,
)
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import operator_name
from pipeline.program.source_lines import source_line


@dataclass(frozen=True)
class BackendShare:
    """The operator calls, distinct operators and delegate calls that one backend runs."""

    nodes: int
    operators: int
    partitions: int


@dataclass(frozen=True)
class LeftCall:
    """A call that is left to portable kernels.

    `place` is that of its node in the source program (`NodePlaces`), None where lowering or
    quantizing made it; `module` the innermost that it is from, "" for the method itself; `reason`
    goes on from "it is left because", and is "" where no partitioner gave one.
    """

    operator: str
    place: int | None
    module: str
    reason: str


@dataclass(frozen=True)
class Segment:
    """Calls of operators in a row, by name.

    They are those of one delegate, of kernels of one backend, or, where `backend` is None, of
    portable kernels.
    """

    backend: str | None
    nodes: int
    operators: dict[str, int]


@dataclass(frozen=True)
class Delegation:
    """The delegation of a method: calls of operators (`nodes`) and distinct operators.

    `getitem` and constants do not count, and what the bodies of control flow call, of which there
    are `subgraphs`, counts once. `delegated_operators` are those with no call outside of delegates.
    `partitions` are calls of delegates by backend; `kernels` the calls of each operator that is a
    backend's own kernel, by backend: neither delegated nor left to portable kernels. Those are in
    `undelegated`, by operator, and one by one in `left`, in the order of the graph. Every call is
    in one of the segments (`stretches` in records), once.
    """

    nodes: int
    delegated_nodes: int
    operators: int
    delegated_operators: int
    partitions: dict[str, int] = field(default_factory=dict)
    undelegated: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    backends: dict[str, BackendShare] = field(default_factory=dict)
    subgraphs: int = 0
    left: list[LeftCall] = field(default_factory=list)
    border: Boundary = field(default_factory=Boundary)
    stretches: list[Segment] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the record, without `kernels` where there are none."""
        return {name: value for name, value in asdict(self).items() if name != "kernels" or value}


@dataclass(frozen=True)
class _Call:
    """A call of a delegate or of an operator, which is then a backend's own kernel or portable."""

    node: Node
    module: str
    backend: str | None
    operators: Counter[str]
    delegate: LoweredBackendModule | None = None


def describe_delegation(
    program: ExportedProgram,
    partitioners: Sequence[PartitionerSpec] | None = None,
    places: NodePlaces | None = None,
) -> Delegation:
    """Describe the delegation of a program in edge dialect that has been lowered.

    Args:
        partitioners: those that the method was lowered with, where they are known. They name the
            operators that are a backend's own kernels, and say why calls are left.
        places: of the method's nodes; without it, calls that are left have no place.
    """
    kernels = {s.backend.lowering.kernels: s.backend.backend_id for s in partitioners or ()}
    calls = list(_iter_calls(program.graph_module, kernels))
    delegates = [each for each in calls if each.delegate is not None]
    outside = _sum(each for each in calls if each.delegate is None)
    delegated = _sum(delegates)
    left = [each for each in calls if each.backend is None]
    own = {each.backend for each in calls if each.delegate is None and each.backend is not None}
    return Delegation(
        nodes=outside.total() + delegated.total(),
        delegated_nodes=delegated.total(),
        operators=len(outside.keys() | delegated.keys()),
        delegated_operators=len(delegated.keys() - outside.keys()),
        partitions=_sort(Counter(each.backend for each in delegates)),
        undelegated=_sort(_sum(left)),
        kernels={
            backend: _sort(_sum(c for c in calls if c.delegate is None and c.backend == backend))
            for backend in sorted(own)
        },
        backends=_backend_shares(delegates),
        subgraphs=_count_subgraphs(program.graph_module, delegates),
        left=[
            LeftCall(
                operator_name(each.node),
                places.find(each.node) if places is not None else None,
                each.module,
                format_reason(each.node) or _general_reason(partitioners),
            )
            for each in left
        ],
        border=measure_boundary(program.graph_module),
        stretches=list(_join_segments(calls)),
    )


def _sum(calls: Iterable[_Call]) -> Counter[str]:
    return sum((each.operators for each in calls), Counter())


def _sort(counts: Mapping[Any, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _backend_shares(delegates: Sequence[_Call]) -> dict[str, BackendShare]:
    shares = {}
    for backend in sorted({str(each.backend) for each in delegates}):
        own = [each for each in delegates if each.backend == backend]
        operators = _sum(own)
        shares[backend] = BackendShare(operators.total(), len(operators), len(own))
    return shares


def _count_subgraphs(module: GraphModule, delegates: Iterable[_Call]) -> int:
    inside = (each.delegate.original_module.graph_module for each in delegates if each.delegate)
    return sum(len([*graph_modules(each)]) - 1 for each in (module, *inside))


def _general_reason(partitioners: Sequence[PartitionerSpec] | None) -> str:
    """Return why calls are left of which no partitioner said anything."""
    by_passes = [spec.name for spec in partitioners or () if spec.backend.lowering.make_passes]
    if by_passes:
        return f"the passes of {', '.join(by_passes)} made no kernel of it"
    return (
        "portable only: the config says so" if partitioners is not None and not partitioners else ""
    )


def _join_segments(calls: Iterable[_Call]) -> Iterator[Segment]:
    """Yield each delegate, and calls in a row that one backend's, or portable, kernels run."""
    joined = groupby(calls, key=lambda each: (each.backend, each.delegate and each.node))
    for (backend, _), row in joined:
        operators = _sum(row)
        yield Segment(backend, operators.total(), dict(operators))


def _iter_calls(
    module: GraphModule, kernels: Mapping[str, str], around: str = ""
) -> Iterator[_Call]:
    """Yield the calls of a graph in its order; bodies of control flow stand where it is called.

    Args:
        kernels: namespaces of operators that are a backend's own kernels, with the backend's id.
        around: the module that the graph stands in; torch.export gives none to nodes of a branch.
    """
    bodies = control_flow_bodies(module)
    for node in module.graph.nodes:
        place = innermost_module(node) or around
        delegate = called_delegate(node)
        if delegate is not None:
            inside = _iter_calls(delegate.original_module.graph_module, {})
            yield _Call(node, place, delegate.backend_id, _sum(inside), delegate)
        elif name := operator_name(node):
            backend = kernels.get(name.partition(".")[0])
            yield _Call(node, place, backend, Counter([name]))
        for body in bodies.get(node, ()):
            yield from _iter_calls(body, kernels, place)


def find_debug_handles(
    lowered: ExportedProgram, places: NodePlaces, backends: Collection[str]
) -> list[tuple[int, int]]:
    """Return the debug handles of what delegates of these backends run, sorted, with their places.

    Handles of nodes that lowering made are left out.
    """
    found: dict[int, int] = {}
    for call in _iter_calls(lowered.graph_module, {}):
        if call.delegate is not None and call.backend in backends:
            for node in iter_nodes(call.delegate.original_module):
                handle, place = node.meta.get("debug_handle"), places.find(node)
                if type(handle) is int and place is not None:
                    found[handle] = place
    return sorted(found.items())


def add_source_lines(
    delegation: Mapping[str, Any], program: ExportedProgram, root: Path
) -> dict[str, Any]:
    """Return a manifest's record of a delegation as reports have it, with lines for places.

    `line`, such as `x + y  # models/small.py:12, in Small.forward` or "", stands instead of each
    `place`.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = list(iter_nodes(program))

    def replace_place(left: Mapping[str, Any]) -> dict[str, str]:
        line = None if left["place"] is None else source_line(nodes[left["place"]], root)
        return {
            "operator": left["operator"],
            "line": str(line or ""),
            "module": left["module"],
            "reason": left["reason"],
        }

    return {**delegation, "left": [replace_place(each) for each in delegation["left"]]}
