"""The graphs of a program, its own and those of its control flow, and the places of their nodes.

A place is a number among `iter_nodes(program)`. It holds for every export of the same program, as a
compiled method does, where a node's name, or the line that it stands on, may be another by then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import count

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import NodeSource, NodeSourceAction


def control_flow_bodies(module: GraphModule) -> dict[Node, list[GraphModule]]:
    """Return the branches and bodies of each control flow that a graph itself has."""
    bodies: dict[Node, list[GraphModule]] = {}
    for _, body, node in get_control_flow_submodules(module):
        bodies.setdefault(node, []).append(body)
    return bodies


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """Yield a graph and, at any depth, the branches and bodies of the control flow in it."""
    yield module
    for _, branch, _ in get_control_flow_submodules(module):
        yield from graph_modules(branch)


def iter_nodes(program: ExportedProgram) -> Iterator[Node]:
    """Yield the nodes of a program's graph, then those of its control flow."""
    for graph_module in graph_modules(program.graph_module):
        yield from graph_module.graph.nodes


def find_constants(graph: Graph, inputs: Set[str] = frozenset()) -> set[Node]:
    """Return the nodes of a graph whose values come of constants alone.

    Args:
        inputs: the names of placeholders that are constants, beside attributes.
    """
    constants: set[Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes
        leaf = node.op == "get_attr" or (node.op == "placeholder" and node.name in inputs)
        if leaf or (sources and node.op != "output" and constants.issuperset(sources)):
            constants.add(node)
    return constants


def forget_lines(program: ExportedProgram) -> None:
    """Forget where in Python a program's nodes come from, so that nothing depends on it."""
    for node in iter_nodes(program):
        node.meta.pop("stack_trace", None)


def called_delegate(node: Node) -> LoweredBackendModule | None:
    """Return the delegate that a node calls, if it calls one."""
    if node.op != "call_function" or node.target is not executorch_call_delegate:
        return None
    module = getattr(node.graph.owning_module, str(node.args[0].target))  # type: ignore[union-attr]
    assert isinstance(module, LoweredBackendModule)
    return module


def feeds_control_flow(node: Node) -> bool:
    """Tell whether a node is an operand, or a branch or body, of a control flow."""
    return any(isinstance(user.target, torch._ops.HigherOrderOperator) for user in node.users)


def copy_graphs(module: GraphModule) -> GraphModule:
    """Return a deep copy whose nodes name those that they were made of, as torch's copies do."""
    twin = copy.deepcopy(module)
    for own, other in zip(graph_modules(module), graph_modules(twin), strict=True):
        for node, copied in zip(own.graph.nodes, other.graph.nodes, strict=True):
            source = NodeSource(node, "copied", NodeSourceAction.CREATE)
            copied.meta = {**copied.meta, "from_node": [source]}
    return twin


class NodePlaces:
    """Finds where the nodes of a lowered program come from, as places in the program before it.

    Args:
        origins: of a program that was quantized, what `find_origins` returned; places are then
            those in the program before quantization.
    """

    def __init__(
        self, program: ExportedProgram, origins: Sequence[Mapping[str, int]] | None = None
    ) -> None:
        self._known: dict[tuple[str, int], int] = {}
        numbers = count()
        for number, module in enumerate(graph_modules(program.graph_module)):
            for node in module.graph.nodes:
                place = next(numbers) if origins is None else origins[number].get(node.name)
                if place is not None:
                    self._known[node.name, id(module.graph)] = place

    def find(self, node: Node) -> int | None:
        """Return the place of the node that this one comes from; None if lowering made it."""
        ancestors = list(node.meta.get("from_node") or ())
        while ancestors:
            ancestor = ancestors.pop()
            place = self._known.get((ancestor.name, ancestor.graph_id))
            if place is not None:
                return place
            ancestors += ancestor.from_node
        return None


def find_origins(quantized: ExportedProgram, program: ExportedProgram) -> list[dict[str, int]]:
    """Map the nodes of each graph of a quantized program, by name, to their places in `program`.

    Names outlive being saved and loaded; the number of nodes need not.
    """
    places = NodePlaces(program)
    return [
        {node.name: place for node in own.graph.nodes if (place := places.find(node)) is not None}
        for own in graph_modules(quantized.graph_module)
    ]


def map_places(quantized: ExportedProgram, origins: Sequence[Mapping[str, int]]) -> dict[int, int]:
    """Map places in a quantized program to those in the program that it was made of."""
    names = (
        (number, node.name)
        for number, own in enumerate(graph_modules(quantized.graph_module))
        for node in own.graph.nodes
    )
    return {
        place: origins[number][name]
        for place, (number, name) in enumerate(names)
        if name in origins[number]
    }
