"""Counts, per partitioner of a method, the operators that it was offered and those that it took.

A record of counts and reasons; whether a partitioner that took nothing is a mistake is for linking
to say, which knows what the config allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends import PartitionerSpec
from pipeline.compile.split_partition import TAG
from pipeline.program.graphs import called_delegate, iter_nodes
from pipeline.program.operators import NOTES, node_label, only_moves, operator_name

MOST_REFUSALS = 3
OUTSIDE = "outside of `modules"  # how the reason begins of what the config keeps from a partitioner


@dataclass(frozen=True)
class Refusal:
    """An operator that a partitioner left, in how many calls, and why, where it is known."""

    operator: str
    calls: int
    reason: str


@dataclass(frozen=True)
class Uptake:
    """The calls of operators that a partitioner was offered, which those before it had left, and
    those that it took. Where it took none, `refusals` has the most frequent reasons.

    Calls that only move values, such as views, do not count where others compute: a delegate of
    views alone speeds nothing up.
    """

    partitioner: str
    offered: int
    taken: int
    refusals: tuple[Refusal, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_uptake(spec: PartitionerSpec, program: ExportedProgram) -> Uptake:
    """Measure what a partitioner took of a program, which has its tags and its reasons."""
    calls = []
    for node in iter_nodes(program):
        if operator_name(node) and called_delegate(node) is None:
            calls.append(node)
    calls = [node for node in calls if not only_moves(node)] or calls
    taken_calls = sum(TAG in node.meta for node in calls)
    # Why some calls were left matters to nobody as long as others were taken.
    refusals = () if taken_calls else _find_refusals(spec.backend.name, calls)
    return Uptake(spec.name, len(calls), taken_calls, refusals)


def measure_kernels(spec: PartitionerSpec, delegation: dict[str, Any]) -> Uptake:
    """Measure what a backend that lowers by passes took: the calls of its own kernels."""
    kernels = delegation.get("kernels", {}).get(spec.backend.backend_id, {})
    kernel_calls = sum(kernels.values())
    undelegated = Counter({} if kernel_calls else delegation["undelegated"])
    refusals = [Refusal(name, calls, "") for name, calls in undelegated.most_common(MOST_REFUSALS)]
    return Uptake(spec.name, delegation["nodes"], kernel_calls, tuple(refusals))


def _find_refusals(backend: str, calls: Sequence[Node]) -> tuple[Refusal, ...]:
    """Return the most frequent reasons, those of the partitioner before those of the config."""
    counted = Counter((node_label(node), _find_reason(backend, node)) for node in calls)

    def rank(refusal: Refusal) -> tuple[bool, int, str, str]:
        by_config = refusal.reason.startswith(OUTSIDE)
        return by_config, -refusal.calls, refusal.operator, refusal.reason

    refusals = [Refusal(name, count, reason) for (name, reason), count in counted.items()]
    return tuple(sorted(refusals, key=rank)[:MOST_REFUSALS])


def _find_reason(backend: str, node: Node) -> str:
    reasons = [reason for name, reason in node.meta.get(NOTES, ()) if name == backend]
    return reasons[-1] if reasons else ""
