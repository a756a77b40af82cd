"""A patch of how torch builds graphs: the order of their nodes (`patches.py`)."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import (
    _FindNodesLookupTable,
    _illegal_names,
    _name_regex,
    _Namespace,
)
from torch.fx.passes.tools_common import legalize_graph

from pipeline.features.speedups.patch import functions_of

# The functions whose source code this module was written for.
SORTING = (
    legalize_graph,
    Graph.create_node,
    _Namespace.create_name,
    *functions_of(_FindNodesLookupTable),
)

# The operators that torch moves ahead, since assertions on sizes are built from them.
_FIRST = frozenset(
    [
        *(
            operator.add,
            operator.mul,
            operator.sub,
            operator.floordiv,
            operator.truediv,
        ),
        *(
            operator.mod,
            operator.le,
            operator.lt,
            operator.ge,
            operator.gt,
            operator.eq,
        ),
        operator.ne,
        torch.ops.aten.sym_constrain_range.default,
        torch.ops.aten.sym_constrain_range_for_size.default,
        torch.ops.aten._assert_async.msg,
        torch.ops.aten.scalar_tensor.default,
        torch.ops.aten._assert_scalar.default,
    ]
)


def make_legalize(original: Callable[[GraphModule], GraphModule]) -> Any:
    """Return a `legalize_graph` that sorts a graph in place.

    ExecuTorch sorts each partition that it cuts out, and the original copies all nodes each time: a
    tenth of the compile of a Whisper-tiny decoder.

    Afterwards the graph matches such a copy in everything that depends on order or names: its
    nodes, the users of each node, the names that are taken, and the table by which nodes are found.
    """

    def legalize(module: GraphModule) -> GraphModule:
        graph = module.graph
        order = _sort(graph)
        # Leave a graph with a cycle to the original, and one whose copy other code could observe.
        if (
            len(order) < len(graph.nodes)
            or type(graph) is not Graph
            or graph._co_fields
        ):
            return original(module)
        names = _find_names(order)
        if names is None:
            return original(module)
        table = _FindNodesLookupTable()
        places = {node: place for place, node in enumerate(order)}
        for node in order:
            graph._root._prepend(node)
            target = node.target if node.op == "call_function" else None
            table.table[node.op, target][node] = None
            if len(node.users) > 1:
                users = sorted(node.users, key=places.__getitem__)
                node.users.clear()
                node.users.update(dict.fromkeys(users))
        graph._graph_namespace = names
        graph._find_nodes_lookup_table = table
        graph._used_names = {}
        graph._tracer_cls = graph._tracer_extras = None
        graph._insert = graph._root.prepend
        module.recompile()
        return module

    return legalize


def _sort(graph: Graph) -> list[Node]:
    """Return the nodes in the order of torch's `legalize_graph`, without the nodes of cycles.

    The original is `torch.fx.passes.tools_common.legalize_graph`.
    """
    waits_for = dict.fromkeys(graph.nodes, 0)
    for node in waits_for:
        for user in node.users:
            waits_for[user] += 1
    queue = deque([node for node, count in waits_for.items() if count == 0])
    order = []
    while queue:
        node = queue.popleft()
        order.append(node)
        for user in node.users:
            waits_for[user] -= 1
            if waits_for[user] == 0:
                is_first = user.op == "call_function" and user.target in _FIRST
                (queue.appendleft if is_first else queue.append)(user)
    return order


def _find_names(order: list[Node]) -> _Namespace | None:
    """Return the namespace of a graph that nodes are copied to, or None if a name would change.

    This creates each name as `_Namespace.create_name` does if the name is valid and not taken.
    """
    names = _Namespace()
    for node in order:
        match = _name_regex.match(node.name)
        if match is None or node.name in names._used_names:
            return None
        base, number = match.groups()
        if number is not None:
            names._base_count[base] = int(number)
        elif _illegal_names.get(node.name) is None:
            names._base_count.setdefault(base, 0)
        else:
            return None
        names._used_names.add(node.name)
        names._obj_to_name[node] = node.name
    return names
