"""Chooses partitions without scanning all nodes for each or trying every pair (`patches.py`).

For each pair of groups, ExecuTorch searches the graph for a path that leaves the two groups and
comes back: 8 of 54 s at 123 partitions, and four times as much at twice as many. Here the groups
that a node reaches, and the groups that reach it, are the bits of an integer that is computed once.
The groups that a group must not be merged with are then one integer, too, and the others are merged
in ExecuTorch's order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    ConfigerationBasedPartitioner,
)
from executorch.exir.backend.canonical_partitioners.group_partitioner import (
    GroupBasedPartitioner,
)
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.passes.utils.fuser_utils import validate_partition
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

from pipeline.program.patching import replaced

# The functions whose source code this module was written for.
SOURCES = (
    GroupBasedPartitioner.propose_partitions,
    GroupBasedPartitioner._merge_partitions,
    GroupBasedPartitioner._can_merge_partitions,
    GroupBasedPartitioner._perform_partition_merge,
    validate_partition,
)
MATCHING = (
    ConfigerationBasedPartitioner.get_matched_nodes_from_configs,
    get_source_partitions,
)
_GEMM_CONFIGS = "executorch.backends.xnnpack.partition.config.gemm_configs"
_OWN_RULE = GroupBasedPartitioner._can_merge_partitions
_Function = Callable[..., Any]


def make_matching(original: _Function) -> _Function:
    """Return a matcher that finds the linear layers of a graph only once.

    `AddmmConfig` scans all nodes twice per `mm` and `addmm`. A partitioner doesn't change the
    graph.
    """

    def match(self: Any, program: ExportedProgram) -> Any:
        gemm_configs = sys.modules.get(_GEMM_CONFIGS)
        if gemm_configs is None:
            return original(self, program)
        with replaced(gemm_configs, "get_source_partitions", _keep_sources):
            return original(self, program)

    return match


def _keep_sources(original: _Function) -> _Function:
    sources: dict[tuple[Graph, tuple[Any, ...]], Any] = {}

    def find(graph: Graph, wanted: list[Any]) -> Any:
        key = graph, tuple(wanted)
        if key not in sources:
            sources[key] = original(graph, wanted)
        return sources[key]

    return find


def make_merge(original: _Function) -> _Function:
    """Return a replacement for `GroupBasedPartitioner._merge_partitions`."""

    def merge(
        self: Any,
        partitions_by_id: dict[int, Any],
        assignment: dict[Node, int],
        *tables: Any,  # only the merging reads these
    ) -> None:
        ids = list(partitions_by_id)
        groups = [list(partitions_by_id[number].nodes) for number in ids]
        if not _is_plain(self, groups):
            original(self, partitions_by_id, assignment, *tables)
            return
        reach = _Reach(list(self.graph_module.graph.nodes), groups)
        for place, members in _choose_merges(groups, reach).items():
            target = partitions_by_id[ids[place]]
            for member in members:
                target.nodes.update(partitions_by_id.pop(ids[member]).nodes)
                assignment.update(dict.fromkeys(groups[member], ids[place]))

    return merge


def _is_plain(partitioner: Any, groups: list[list[Node]]) -> bool:
    """Return whether ExecuTorch's own rule decides about merges, and no two groups share a node."""
    if type(partitioner)._can_merge_partitions is not _OWN_RULE:
        return False
    nodes = [node for group in groups for node in group]
    return len(set(nodes)) == len(nodes)


class _Reach:
    """Sets of groups by node, each set an integer with a bit per group in the groups' order.

    Attributes:
        holding: the group that holds the node itself.
        below: the groups that hold the node or a node that depends on it.
        above: the groups that hold the node or a node that it depends on.
    """

    def __init__(self, nodes: list[Node], groups: list[list[Node]]) -> None:
        self.holding = dict.fromkeys(nodes, 0)
        self.below: dict[Node, int] = {}
        self.above: dict[Node, int] = {}
        for place, group in enumerate(groups):
            self.holding.update(dict.fromkeys(group, 1 << place))
        for node in reversed(nodes):
            users = [self.below[user] for user in node.users]
            self.below[node] = _unite(self.holding[node], users)
        for node in nodes:
            inputs = [self.above[operand] for operand in node.all_input_nodes]
            self.above[node] = _unite(self.holding[node], inputs)


def _unite(first: int, sets: Iterable[int]) -> int:
    for groups in sets:
        first |= groups
    return first


def _choose_merges(groups: list[list[Node]], reach: _Reach) -> dict[int, list[int]]:
    """Return the later groups that each group absorbs, in ExecuTorch's order.

    A group is tried with each later group that no other has absorbed, and includes by then the
    groups that it has absorbed so far.
    """
    gaps = _find_gaps(groups, reach)
    untaken = (1 << len(groups)) - 1
    merges: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        if not untaken >> place & 1:
            continue
        untaken &= -2 << place  # the later ones
        merged = _Merged(reach)
        merged.add(1 << place, group)
        candidates = untaken & ~merged.find_forbidden(gaps)
        while candidates:
            member = (candidates & -candidates).bit_length() - 1
            merges.setdefault(place, []).append(member)
            merged.add(1 << member, groups[member])
            untaken &= ~(1 << member)
            candidates = untaken & (-2 << member) & ~merged.find_forbidden(gaps)
    return merges


class _Merged:
    """Merged groups, with the outside nodes that use their nodes or that their nodes use."""

    def __init__(self, reach: _Reach) -> None:
        self._reach = reach
        self._groups = 0
        self._users: set[Node] = set()
        self._inputs: set[Node] = set()

    def add(self, group: int, nodes: list[Node]) -> None:
        self._groups |= group
        for node in nodes:
            self._users.update(node.users)
            self._inputs.update(node.all_input_nodes)
        self._users = self._leave_out_members(self._users)
        self._inputs = self._leave_out_members(self._inputs)

    def _leave_out_members(self, nodes: set[Node]) -> set[Node]:
        holding = self._reach.holding
        return {node for node in nodes if not holding[node] & self._groups}

    def find_forbidden(self, gaps: Mapping[int, list[int]]) -> int:
        """Return the groups that must not be merged with these.

        A path between such a group and these leads through a node outside both. A node never rules
        out the group that holds it.
        """
        reach = self._reach
        forbidden = 0
        for node in self._users:
            holder = reach.holding[node]
            comes_back = reach.below[node] & self._groups
            forbidden |= ~holder if comes_back else reach.below[node] & ~holder
        for node in self._inputs:
            forbidden |= reach.above[node] & ~reach.holding[node]
        for group, holders in gaps.items():
            if not all(holder & self._groups for holder in holders):
                forbidden |= group
        return forbidden


def _find_gaps(groups: list[list[Node]], reach: _Reach) -> dict[int, list[int]]:
    """For each group that paths leave and re-enter, return the groups of their first outside nodes.

    0 stands for a node in no group.
    """
    gaps: dict[int, list[int]] = {}
    for place, nodes in enumerate(groups):
        group = 1 << place
        for node in nodes:
            for user in node.users:
                if not reach.holding[user] & group and reach.below[user] & group:
                    gaps.setdefault(group, []).append(reach.holding[user])
    return gaps
