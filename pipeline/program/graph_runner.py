"""Runs a graph node by node, without the overhead of torch.fx's interpreter.

For each node, the interpreter prepares error messages and copies nested arguments, which takes most
of the time when tensors are small.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

Arguments = tuple[Any, ...]
# Called with a node that calls a function, its arguments and keyword arguments; returns the result.
CallNode = Callable[[Node, Arguments, dict[str, Any]], Any]


class GraphRunner:
    """A runner of a graph and its control flow that passes each call to a function of the caller.

    Attributes of the module are read when the graph runs, so that others may replace them.

    Attributes:
        call_node: called for each node that calls a function.
    """

    def __init__(self, module: GraphModule, call_node: CallNode) -> None:
        self._module = module
        self.call_node = call_node
        self._nodes = list(module.graph.nodes)
        self._unused_after = _find_last_uses(self._nodes)
        self._plain = {node for node in self._nodes if _is_plain(node)}
        self._bodies: dict[GraphModule, GraphRunner] = {}

    def run(self, *inputs: Any) -> Any:
        """Return the graph's result for these values of its placeholders."""
        values: dict[Node, Any] = {}
        remaining = iter(inputs)
        for node in self._nodes:
            if node.op == "call_function":
                values[node] = self._call(node, values)
            elif node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = self._read_attribute(node.target)
            elif node.op == "output":
                return map_arg(node.args[0], values.__getitem__)
            else:
                raise NotImplementedError(f"{node.op} {node.target}")
            for unused in self._unused_after.get(node, ()):
                del values[unused]
        return None

    def _call(self, node: Node, values: dict[Node, Any]) -> Any:
        if node in self._plain:
            args = [values[a] if isinstance(a, Node) else a for a in node.args]
            return self.call_node(node, tuple(args), dict(node.kwargs))
        find: Callable[[Node], Any] = values.__getitem__
        args = map_arg(node.args, find)
        return self.call_node(node, tuple(args), dict(map_arg(node.kwargs, find)))

    def _read_attribute(self, name: Any) -> Any:
        """Return an attribute; for a control-flow body, return a function that runs it."""
        value = attrgetter(name)(self._module)
        if not isinstance(value, GraphModule):
            return value
        if value not in self._bodies:
            self._bodies[value] = GraphRunner(value, self.call_node)
        return self._bodies[value].run


def _find_last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """Return, for each node, the values that no later node reads."""
    seen: set[Node] = set()
    unused_after: dict[Node, list[Node]] = {}
    for node in reversed(nodes):
        for argument in (*node.all_input_nodes, node):
            if argument not in seen:
                seen.add(argument)
                unused_after.setdefault(node, []).append(argument)
    return unused_after


def _is_plain(node: Node) -> bool:
    """Return whether a node has no keyword arguments and no containers among its arguments."""
    return not node.kwargs and not any(
        isinstance(argument, (tuple, list, dict, slice)) for argument in node.args
    )
