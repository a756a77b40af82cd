"""Describes the delegation of a lowered method: which operators its delegates run, and which not.

ExecuTorch's `get_delegation_info` reads only the top-level graph and counts `getitem`, which moves
no data. Here a node is a call of an operator, inside or outside a delegate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from typing import Any

from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import PartitionerSpec
from pipeline.backends.estimate import find_estimate
from pipeline.moments import call_all
from pipeline.program.graphs import (
    NodePlaces,
    called_delegate,
    control_flow_bodies,
    graph_modules,
    iter_nodes,
)
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import NOTES, operator_name


@dataclass(frozen=True)
class _GraphCall:
    """A call of a delegate, or of an operator.

    An operator is a backend's own kernel if `backend` is set, and a portable kernel otherwise.
    """

    node: Node
    module: str
    backend: str | None
    operators: Counter[str]
    delegate: LoweredBackendModule | None = None


def describe_delegation(
    program: ExportedProgram,
    partitioners: Sequence[PartitionerSpec] | None = None,
    places: NodePlaces | None = None,
) -> dict[str, Any]:
    """Describe the delegation of a lowered program in edge dialect.

    Args:
        partitioners: the method's partitioners, if known. They determine which operators are a
            backend's own kernels, and give reasons for the calls that are left.
        places: the places of the method's nodes; without them, calls that are left have no place.

    Returns:
        A `DELEGATION`, except that each call in `left` has its `place` in the source program
        (`NodePlaces`; None if lowering or quantizing made it) instead of its line. `getitem` and
        constants don't count. Calls in the bodies of control flow, whose number is `subgraphs`,
        count once. `delegated_operators` counts the operators that are called only in delegates.
        `partitions` counts calls of delegates by backend. `kernels` counts calls of a backend's own
        kernels, which are neither delegated nor left. `kernels` and `estimates` are left out if
        they are empty. Each call is in exactly one of the `segments`.
    """
    kernels = {
        s.backend.lowering.kernels: s.backend.backend_id for s in partitioners or ()
    }
    calls = list(_iter_calls(program.graph_module, kernels))
    delegates = _by_backend(call for call in calls if call.delegate is not None)
    outside = _by_backend(call for call in calls if call.delegate is None)
    delegated = _sum(chain(*delegates.values()))
    not_delegated = _sum(chain(*outside.values()))
    # Calls of portable kernels have no backend.
    undelegated = outside.pop(None, [])
    by_kernels = {}
    for backend, kernel_calls in outside.items():
        by_kernels[backend] = dict(sorted(_sum(kernel_calls).items()))
    estimates = list(_iter_estimates(calls))
    record: dict[str, Any] = {
        "nodes": not_delegated.total() + delegated.total(),
        "delegated_nodes": delegated.total(),
        "operators": len(not_delegated.keys() | delegated.keys()),
        "delegated_operators": len(delegated.keys() - not_delegated.keys()),
        "partitions": {backend: len(group) for backend, group in delegates.items()},
        "undelegated": dict(sorted(_sum(undelegated).items())),
    }
    if by_kernels:
        record["kernels"] = by_kernels
    record |= {
        "backends": {backend: _share(group) for backend, group in delegates.items()},
        "subgraphs": _count_subgraphs(program, calls),
        "left": [
            _describe_undelegated(call, partitioners, places) for call in undelegated
        ],
        "segments": list(_join_segments(calls)),
    }
    if estimates:
        record["estimates"] = estimates
    for more_fields in call_all("measure_delegation", program):
        record |= more_fields
    return record


def _count_subgraphs(program: ExportedProgram, calls: Iterable[_GraphCall]) -> int:
    """Count the bodies of control flow, inside and outside delegates."""
    modules = [program.graph_module]
    for call in calls:
        if call.delegate:
            modules.append(call.delegate.original_module.graph_module)
    return sum(len([*graph_modules(module)]) - 1 for module in modules)


def _describe_undelegated(
    call: _GraphCall,
    partitioners: Sequence[PartitionerSpec] | None,
    places: NodePlaces | None,
) -> dict[str, Any]:
    return {
        "operator": operator_name(call.node),
        "place": places.find(call.node) if places is not None else None,
        "module": call.module,
        "reason": _format_reason(call.node) or _general_reason(partitioners),
    }


def _format_reason(node: Node) -> str:
    """Return the reasons that a feature noted for a node.

    If several partitioners have reasons, each is preceded by the partitioner's name.
    """
    notes = node.meta.get(NOTES, ())
    if len({name for name, _ in notes}) < 2:
        return "; ".join(reason for _, reason in notes if reason)
    return "; ".join(f"{name}: {reason}" for name, reason in notes if reason)


def _iter_estimates(calls: Iterable[_GraphCall]) -> Iterator[dict[str, Any]]:
    """Yield the estimate of each called delegate whose backend's compiler makes one."""
    for call in calls:
        if call.delegate is None:
            continue
        estimate = find_estimate(call.delegate)
        if estimate is not None:
            yield {"backend": call.backend, **asdict(estimate)}


def _share(delegates: Sequence[_GraphCall]) -> dict[str, Any]:
    operators = _sum(delegates)
    return {
        "nodes": operators.total(),
        "operators": len(operators),
        "partitions": len(delegates),
    }


def _sum(calls: Iterable[_GraphCall]) -> Counter[str]:
    return sum((call.operators for call in calls), Counter())


def _by_backend(calls: Iterable[_GraphCall]) -> dict[str | None, list[_GraphCall]]:
    calls_by_backend: dict[str | None, list[_GraphCall]] = {}
    for call in sorted(calls, key=lambda call: call.backend or ""):
        calls_by_backend.setdefault(call.backend, []).append(call)
    return calls_by_backend


def _general_reason(partitioners: Sequence[PartitionerSpec] | None) -> str:
    """Return why calls are left for which no partitioner gave a reason."""
    by_passes = [
        spec.name for spec in partitioners or () if spec.backend.lowering.make_passes
    ]
    if by_passes:
        return f"the passes of {', '.join(by_passes)} found no kernel for it"
    by_config = partitioners is not None and not partitioners
    if by_config:
        return "portable kernels only, as the config says"
    return ""


def _join_segments(calls: Iterable[_GraphCall]) -> Iterator[dict[str, Any]]:
    """Yield a segment for each delegate, and for each run of other calls.

    All calls in a run use the kernels of one backend, or portable kernels.
    """
    joined = groupby(
        calls,
        key=lambda call: (call.backend, call.delegate and call.node),
    )
    for (backend, _), row in joined:
        operators = _sum(row)
        yield {
            "backend": backend,
            "nodes": operators.total(),
            "operators": dict(operators),
        }


def _iter_calls(
    module: GraphModule, kernels: Mapping[str, str], around: str = ""
) -> Iterator[_GraphCall]:
    """Yield the calls of a graph in order, with bodies of control flow where they are called.

    Args:
        kernels: namespaces of operators that are a backend's own kernels, with the backend's id.
        around: the module around the graph, since torch.export gives nodes of a branch no module.
    """
    bodies = control_flow_bodies(module)
    for node in module.graph.nodes:
        place = innermost_module(node) or around
        delegate = called_delegate(node)
        if delegate is not None:
            inside = _iter_calls(delegate.original_module.graph_module, {})
            yield _GraphCall(node, place, delegate.backend_id, _sum(inside), delegate)
        elif name := operator_name(node):
            backend = kernels.get(name.partition(".")[0])
            yield _GraphCall(node, place, backend, Counter([name]))
        for body in bodies.get(node, ()):
            yield from _iter_calls(body, kernels, place)


def find_debug_handles(
    lowered: ExportedProgram, places: NodePlaces, backends: Collection[str]
) -> list[tuple[int, int]]:
    """Return the debug handle and the source place of each node that these backends run, sorted."""
    places_by_handle: dict[int, int] = {}
    for call in _iter_calls(lowered.graph_module, {}) if backends else ():
        if call.delegate is None or call.backend not in backends:
            continue
        for node in iter_nodes(call.delegate.original_module):
            handle = node.meta.get("debug_handle")
            place = places.find(node)
            if type(handle) is int and place is not None:
                places_by_handle[handle] = place
    return sorted(places_by_handle.items())
