"""Nodes that a graph computes from constants, so that a quantizer may round them ahead of time."""

from __future__ import annotations

from collections.abc import Set

from torch.fx import Graph, Node


def find_constants(graph: Graph, inputs: Set[str] = frozenset()) -> set[Node]:
    """Return the nodes of a graph that are computed from constants alone.

    Args:
        inputs: the names of placeholders that are constants; attributes always are.
    """
    constants: set[Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            is_constant = True
        elif node.op == "placeholder":
            is_constant = node.name in inputs
        elif node.op == "output":
            is_constant = False
        else:
            sources = node.all_input_nodes
            is_constant = bool(sources) and constants.issuperset(sources)
        if is_constant:
            constants.add(node)
    return constants
