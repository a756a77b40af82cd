"""Merge groups of nodes into partitions without trying every pair (`patches.py`).

ExecuTorch asks of each pair whether a path leaves the two groups and comes back, by searching the
graph: 8 of 54 s at 123 partitions, and four times as much at twice as many. Here the groups that a
node reaches, and those that reach it, are bits of an integer that is computed once; so what a group
must not be merged with is one integer, and the others are merged in ExecuTorch's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from executorch.exir.backend.canonical_partitioners.group_partitioner import (
    GroupBasedPartitioner,
)
from torch.fx import Node
from torch.fx.passes.utils.fuser_utils import validate_partition

# The texts that this was written for.
SOURCES = (
    GroupBasedPartitioner.propose_partitions,
    GroupBasedPartitioner._merge_partitions,
    GroupBasedPartitioner._can_merge_partitions,
    GroupBasedPartitioner._perform_partition_merge,
    validate_partition,
)
_OWN_RULE = GroupBasedPartitioner._can_merge_partitions
_Function = Callable[..., Any]


def make_merge(original: _Function) -> _Function:
    """Return what stands in place of `GroupBasedPartitioner._merge_partitions`."""

    def merge(
        self: Any,
        partitions_by_id: dict[int, Any],
        assignment: dict[Node, int],
        *tables: Any,  # of the merging alone: nobody looks at them afterwards
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
    """Tell whether ExecuTorch's own rule decides, of groups that have no node in common."""
    if type(partitioner)._can_merge_partitions is not _OWN_RULE:
        return False
    nodes = [node for group in groups for node in group]
    return len(set(nodes)) == len(nodes)


class _Reach:
    """Sets of groups by node, each a bit of an integer in the groups' order.

    Attributes:
        holding: the group that holds the node itself.
        below: those that hold the node or what depends on it.
        above: those that hold the node or what it depends on.
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
    """Return which later groups each group takes in, in ExecuTorch's order: a group is tried with
    each later one that no other has taken, and is as large as it has become by then."""
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
    """Groups that are merged, and the nodes outside that use them or that they use."""

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
        """Return the groups between which and these a path leads through a node of neither.

        A node that another group holds is in the way of all but this group.
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
    """Return, by group that a path leaves and comes back to, the groups of the first nodes of such
    paths; 0 stands for a node in none."""
    gaps: dict[int, list[int]] = {}
    for place, nodes in enumerate(groups):
        group = 1 << place
        for node in nodes:
            for user in node.users:
                if not reach.holding[user] & group and reach.below[user] & group:
                    gaps.setdefault(group, []).append(reach.holding[user])
    return gaps
