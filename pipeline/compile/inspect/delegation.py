"""Describes the delegation of a lowered method: what its delegates run, and what they leave.

ExecuTorch's `get_delegation_info` reads the top-level graph only and counts `getitem`, which moves
no data. Here a node is a call of an operator, in a delegate or out of one.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.sym_util import eval_upper_bound
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.backends import PartitionerSpec
from pipeline.backends.estimate import find_estimate
from pipeline.compile.inspect.reasons import format_reason
from pipeline.program.graphs import (
    NodePlaces,
    called_delegate,
    control_flow_bodies,
    graph_modules,
    iter_nodes,
)
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import base_name, operator_name
from pipeline.program.source_lines import source_line
from pipeline.store.compiled import BackendCounts, Boundary, Crossing, GraphSegment

# Operators that give the values that they are given, in another layout or dtype, or elsewhere.
_COPIES = frozenset({"_to_dim_order_copy", "_clone_dim_order", "_to_copy", "clone"})


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
) -> dict[str, Any]:
    """Describe the delegation of a program in edge dialect that has been lowered.

    Args:
        partitioners: those that the method was lowered with, where they are known. They name the
            operators that are a backend's own kernels, and say why calls are left.
        places: of the method's nodes; without it, calls that are left have no place.

    Returns:
        A `Delegation`, in which each call in `left` has its `place` in the source program
        (`NodePlaces`; None where lowering or quantizing made it) instead of its line. `getitem` and
        constants do not count, and what the bodies of control flow call, of which there are
        `subgraphs`, counts once. `delegated_operators` have no call outside of delegates.
        `partitions` counts calls of delegates by backend; `kernels`, which is left out where there
        are none, calls of a backend's own kernels, neither delegated nor left. `estimates` are left
        out where there are none. Every call is in one of the `segments`, once.
    """
    kernels = {s.backend.lowering.kernels: s.backend.backend_id for s in partitioners or ()}
    calls = list(_iter_calls(program.graph_module, kernels))
    delegates = _by_backend(each for each in calls if each.delegate is not None)
    outside = _by_backend(each for each in calls if each.delegate is None)
    delegated, not_delegated = (_sum(chain(*each.values())) for each in (delegates, outside))
    left = outside.pop(None, [])
    by_kernels = {name: dict(sorted(_sum(own).items())) for name, own in outside.items()}
    inside = [each.delegate.original_module.graph_module for each in calls if each.delegate]
    estimates = list(_iter_estimates(calls))
    return {
        "nodes": not_delegated.total() + delegated.total(),
        "delegated_nodes": delegated.total(),
        "operators": len(not_delegated.keys() | delegated.keys()),
        "delegated_operators": len(delegated.keys() - not_delegated.keys()),
        "partitions": {name: len(own) for name, own in delegates.items()},
        "undelegated": dict(sorted(_sum(left).items())),
        **({"kernels": by_kernels} if by_kernels else {}),
        "backends": {name: _share(own) for name, own in delegates.items()},
        "subgraphs": sum(
            len([*graph_modules(each)]) - 1 for each in (program.graph_module, *inside)
        ),
        "left": [
            {
                "operator": operator_name(each.node),
                "place": places.find(each.node) if places is not None else None,
                "module": each.module,
                "reason": format_reason(each.node) or _general_reason(partitioners),
            }
            for each in left
        ],
        "boundary": _measure_boundary(program.graph_module),
        "segments": list(_join_segments(calls)),
        **({"estimates": estimates} if estimates else {}),
    }


def _iter_estimates(calls: Iterable[_Call]) -> Iterator[dict[str, Any]]:
    """Yield the estimates of called delegates whose backend's compiler makes one."""
    for call in calls:
        estimate = find_estimate(call.delegate) if call.delegate is not None else None
        if estimate is not None:
            yield {"backend": call.backend, **asdict(estimate)}


def _share(delegates: Sequence[_Call]) -> BackendCounts:
    operators = _sum(delegates)
    return {"nodes": operators.total(), "operators": len(operators), "partitions": len(delegates)}


def _sum(calls: Iterable[_Call]) -> Counter[str]:
    return sum((each.operators for each in calls), Counter())


def _by_backend(calls: Iterable[_Call]) -> dict[str | None, list[_Call]]:
    found: dict[str | None, list[_Call]] = {}
    for each in sorted(calls, key=lambda call: call.backend or ""):
        found.setdefault(each.backend, []).append(each)
    return found


def _general_reason(partitioners: Sequence[PartitionerSpec] | None) -> str:
    """Return why calls are left of which no partitioner said anything."""
    by_passes = [spec.name for spec in partitioners or () if spec.backend.lowering.make_passes]
    if by_passes:
        return f"the passes of {', '.join(by_passes)} made no kernel of it"
    by_config = partitioners is not None and not partitioners
    return "portable only: the config says so" if by_config else ""


def _join_segments(calls: Iterable[_Call]) -> Iterator[GraphSegment]:
    """Yield each delegate, and calls in a row that one backend's, or portable, kernels run."""
    joined = groupby(calls, key=lambda each: (each.backend, each.delegate and each.node))
    for (backend, _), row in joined:
        operators = _sum(row)
        yield {"backend": backend, "nodes": operators.total(), "operators": dict(operators)}


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


def _measure_boundary(module: GraphModule) -> Boundary:
    """Measure the data that goes into delegates and out of them in a call of a method, at most."""
    # Dynamic sizes count with their upper bounds, of a condition the dearer branch, and the body of
    # a loop as often as it is run. What goes from one delegate to another counts on both sides.
    # `copies` are operators beside a delegate that only change layout or dtype, or copy.
    crossings, copies = _measure_crossings(module)
    records: list[Crossing] = [
        {"tensors": tensors, "bytes": size} for tensors, size in crossings.tolist()
    ]
    return {"into": records[0], "out_of": records[1], "copies": copies}


def _measure_crossings(module: GraphModule) -> tuple[npt.NDArray[np.object_], int]:
    """Return tensors and bytes, into delegates (first row) and out of them, and the copies."""
    copies = sum(map(_is_copy_beside_delegate, module.graph.nodes))
    crossings = np.zeros((2, 2), np.object_)  # Python's integers, which do not overflow
    for node in module.graph.nodes:
        if called_delegate(node) is not None:
            given = [each.meta.get("val") for each in node.args[1:] if isinstance(each, Node)]
            crossings += [_count(given), _count(node.meta.get("val"))]
    for flow, bodies in control_flow_bodies(module).items():
        own = [_measure_crossings(body) for body in bodies]
        dearest = max((each for each, _ in own), key=lambda each: each[:, 1].sum())
        crossings += dearest * _max_runs(flow)
        copies += sum(each for _, each in own)
    return crossings, copies


def _max_runs(flow: Node) -> int:
    """Return how often a control flow runs a body at most; a branch of a condition, once."""
    if flow.target is torch.ops.higher_order.cond:
        return 1
    # map_impl(body, xs, others), scan(body, carries, xs, others)
    xs: Any = flow.args[1] if flow.target is torch.ops.higher_order.map_impl else flow.args[2]
    value = xs[0].meta.get("val") if xs else None
    return _upper_bound(value.shape[0]) if isinstance(value, torch.Tensor) else 1


def _is_copy_beside_delegate(node: Node) -> bool:
    if base_name(node) not in _COPIES:
        return False
    makers = map(_maker, node.all_input_nodes)
    return any(called_delegate(each) is not None for each in (*makers, *node.users))


def _maker(node: Node) -> Node:
    """Return the node that made a value, which may be one of several that it made."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _count(values: Any) -> list[int]:
    tensors = [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    sizes = (math.prod([t.dtype.itemsize, *map(_upper_bound, t.shape)]) for t in tensors)
    return [len(tensors), sum(sizes)]


def _upper_bound(size: int | torch.SymInt) -> int:
    """Return a size's upper bound, without one the example's; 1 if known only at run time."""
    try:
        return eval_upper_bound(size)
    except RuntimeError:
        return 1


def find_debug_handles(
    lowered: ExportedProgram, places: NodePlaces, backends: Collection[str]
) -> list[tuple[int, int]]:
    """Return debug handles of what these backends run of the source, sorted, with places."""
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
    """Return a manifest's record of a delegation as reports have it.

    `line`, such as `x + y  # models/small.py:12, in Small.forward` or "", replaces `place`.

    Args:
        program: the method as its source gives it, not quantized.
        root: the workspace.
    """
    nodes = list(iter_nodes(program))

    def find_line(place: int | None) -> str:
        return "" if place is None else str(source_line(nodes[place], root) or "")

    left = [
        {
            "operator": each["operator"],
            "line": find_line(each.get("place")),
            "module": each["module"],
            "reason": each["reason"],
        }
        for each in delegation["left"]
    ]
    return {**delegation, "left": left}
