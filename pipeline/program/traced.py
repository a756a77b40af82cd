"""The graph that a pass of ExecuTorch traced last, and whether it is still as it was then."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node


class Traced:
    """The graph that was traced last, by `ExportPass`, as it was then."""

    def __init__(self) -> None:
        self._module: GraphModule | None = None
        self._nodes: list[tuple[Any, ...]] = []

    def keep(self, module: GraphModule) -> None:
        self._module, self._nodes = module, list(map(_describe, module.graph.nodes))

    def holds(self, module: GraphModule) -> bool:
        """Return whether this is that graph, and tracing it again would give its like: no node
        was made, moved or given other arguments, users or a value since, and there is no branch
        of control flow."""
        nodes = module.graph.nodes
        if module is not self._module or len(nodes) != len(self._nodes):
            return False
        return all(
            (node.op in ("placeholder", "call_function", "output") or _is_constant(node, module))
            and all(a is b for a, b in zip(_describe(node), before, strict=True))
            for node, before in zip(nodes, self._nodes, strict=True)
        )


def _is_constant(node: Node, module: GraphModule) -> bool:
    return node.op == "get_attr" and isinstance(find_attribute(node, module), Tensor)


def find_attribute(node: Node, module: GraphModule) -> Any:
    """Return what a `get_attr` node gets."""
    return attrgetter(str(node.target))(module)


def _describe(node: Node) -> tuple[Any, ...]:
    """Return what tracing a node reads of it. Arguments are never changed, but replaced."""
    users = (len(node.users), *node.users)
    return (node, node.op, node.target, node.args, node.kwargs, node.meta.get("val"), *users)
