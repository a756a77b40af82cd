"""Counts, for each partitioner of a method, the operators that it was offered and that it took.

This module only records counts and reasons. Linking, which knows what the config allows, decides
whether a partitioner that took nothing is a mistake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends import PartitionerSpec
from pipeline.program.graphs import called_delegate, iter_nodes
from pipeline.program.operators import NOTES, TAG, node_label, only_moves, operator_name
from pipeline.store.compiled import NOT_QUANTIZED

MOST_REFUSALS = 3
OUTSIDE = "outside `modules"  # how a reason that comes from the config begins


def measure_uptake(spec: PartitionerSpec, program: ExportedProgram) -> dict[str, Any]:
    """Measure how much of a program a partitioner took.

    The program has the partitioner's tags, and its reasons for the nodes that it left.
    """
    calls = []
    for node in iter_nodes(program):
        if operator_name(node) and called_delegate(node) is None:
            calls.append(node)
    # If a method only moves values, those calls count after all.
    calls = [node for node in calls if not only_moves(node)] or calls
    taken_calls = sum(TAG in node.meta for node in calls)
    # Reasons for the calls that were left matter only if none was taken.
    refusals = [] if taken_calls else _find_refusals(spec.backend.name, calls)
    return {
        "partitioner": spec.name,
        "offered": len(calls),
        "taken": taken_calls,
        "refusals": refusals,
    }


def measure_kernels(
    spec: PartitionerSpec, delegation: dict[str, Any]
) -> dict[str, Any]:
    """Measure how much of a method went to a backend that lowers by passes.

    The calls of the backend's own kernels count as taken.
    """
    kernels = delegation.get("kernels", {}).get(spec.backend.backend_id, {})
    kernel_calls = sum(kernels.values())
    undelegated = Counter({} if kernel_calls else delegation["undelegated"])
    is_quantized = any(name.startswith("quantized_decomposed.") for name in undelegated)
    reason = "" if is_quantized else NOT_QUANTIZED
    refusals = [
        {"operator": name, "calls": calls, "reason": reason}
        for name, calls in undelegated.most_common(MOST_REFUSALS)
    ]
    return {
        "partitioner": spec.name,
        "offered": delegation["nodes"],
        "taken": kernel_calls,
        "refusals": refusals,
    }


def _find_refusals(backend: str, calls: Sequence[Node]) -> list[dict[str, Any]]:
    """Return the most frequent reasons, the partitioner's before the config's."""
    counted = Counter((node_label(node), _find_reason(backend, node)) for node in calls)

    def rank(refusal: dict[str, Any]) -> tuple[bool, int, str, str]:
        by_config = refusal["reason"].startswith(OUTSIDE)
        return by_config, -refusal["calls"], refusal["operator"], refusal["reason"]

    refusals = [
        {"operator": name, "calls": count, "reason": reason}
        for (name, reason), count in counted.items()
    ]
    return sorted(refusals, key=rank)[:MOST_REFUSALS]


def _find_reason(backend: str, node: Node) -> str:
    reasons = []
    for name, reason in node.meta.get(NOTES, ()):
        if name == backend:
            reasons.append(reason)
    if reasons:
        return reasons[-1]
    return ""
