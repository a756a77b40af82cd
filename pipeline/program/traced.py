"""Remembers the graph that an ExecuTorch pass traced last, to detect whether it has changed."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node


class Traced:
    """A record of the graph that `ExportPass` traced last, as it was then."""

    def __init__(self) -> None:
        self._module: GraphModule | None = None
        self._nodes: list[tuple[Any, ...]] = []

    def keep(self, module: GraphModule) -> None:
        self._module = module
        self._nodes = [_describe(node) for node in module.graph.nodes]

    def holds(self, module: GraphModule) -> bool:
        """Return whether a graph is the recorded one, and tracing it again would reproduce it.

        This holds if since then no node was added, moved, or given other arguments, users or
        another value, and if the graph has no branches of control flow.
        """
        nodes = module.graph.nodes
        if module is not self._module or len(nodes) != len(self._nodes):
            return False
        for node, description in zip(nodes, self._nodes, strict=True):
            if not _is_traceable(node, module):
                return False
            pairs = zip(_describe(node), description, strict=True)
            if not all(value is value_then for value, value_then in pairs):
                return False
        return True


def _is_traceable(node: Node, module: GraphModule) -> bool:
    if node.op == "get_attr":  # a tensor is traceable, a branch isn't
        return isinstance(find_attribute(node, module), Tensor)
    return node.op in ("placeholder", "call_function", "output")


def find_attribute(node: Node, module: GraphModule) -> Any:
    """Return the value of a `get_attr` node."""
    return attrgetter(str(node.target))(module)


def _describe(node: Node) -> tuple[Any, ...]:
    """Return everything about a node that tracing reads.

    Identity is enough to compare arguments, since they are replaced, never changed in place.
    """
    users = (len(node.users), *node.users)
    return (
        node,
        node.op,
        node.target,
        node.args,
        node.kwargs,
        node.meta.get("val"),
        *users,
    )
