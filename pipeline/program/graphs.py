"""Walks the graphs of a program and its control flow, and finds the places of their nodes.

The place of a node is its index in `iter_nodes(program)`. Like a compiled method, it is valid for
every export of the same program; the name of a node and its source line may differ between exports.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.traceback import NodeSource, NodeSourceAction


def control_flow_bodies(module: GraphModule) -> dict[Node, list[GraphModule]]:
    """Return the branches or bodies of each control-flow node at the top level of a graph."""
    bodies: dict[Node, list[GraphModule]] = {}
    for _, body, node in get_control_flow_submodules(module):
        bodies.setdefault(node, []).append(body)
    return bodies


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """Yield a graph, then the branches and bodies of its control flow at any depth."""
    yield module
    for _, branch, _ in get_control_flow_submodules(module):
        yield from graph_modules(branch)


def iter_nodes(program: ExportedProgram) -> Iterator[Node]:
    """Yield the nodes of a program's graph, then those of its control flow."""
    for graph_module in graph_modules(program.graph_module):
        yield from graph_module.graph.nodes


def has_mutations(program: ExportedProgram) -> bool:
    """Return whether an operator in any graph of a program changes an argument."""
    return any(map(is_mutable, iter_all_nodes(program)))


def iter_all_nodes(program: ExportedProgram) -> Iterator[Node]:
    """Yield the nodes of a program's graph and of every other graph that it holds."""
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, GraphModule):
            yield from graph_module.graph.nodes


def is_mutable(node: Node) -> bool:
    """Return whether a node's operator changes one of its arguments, according to its schema."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def forget_lines(program: ExportedProgram) -> None:
    """Drop the stack traces of nodes, so that nothing depends on lines of Python source."""
    for node in iter_nodes(program):
        node.meta.pop("stack_trace", None)


def called_delegate(node: Node) -> LoweredBackendModule | None:
    """Return the delegate that a node calls, or None if it calls none."""
    if node.op != "call_function" or node.target is not executorch_call_delegate:
        return None
    module = getattr(node.graph.owning_module, str(node.args[0].target))  # type: ignore[union-attr]
    assert isinstance(module, LoweredBackendModule)
    return module


def feeds_control_flow(node: Node) -> bool:
    """Return whether a node is an operand, branch or body of a control-flow operator."""
    return any(
        isinstance(user.target, torch._ops.HigherOrderOperator) for user in node.users
    )


def copy_graphs(module: GraphModule) -> GraphModule:
    """Return a deep copy whose nodes refer to their originals, as torch's copies do."""
    module_copy = copy.deepcopy(module)
    for graph_module, its_copy in zip(
        graph_modules(module), graph_modules(module_copy), strict=True
    ):
        for node, node_copy in zip(
            graph_module.graph.nodes, its_copy.graph.nodes, strict=True
        ):
            # Without `from_node`, a node that a pass derives from the copy couldn't be traced back
            # to the original.
            source = NodeSource(node, "copied", NodeSourceAction.CREATE)
            node_copy.meta = {**node_copy.meta, "from_node": [source]}
    return module_copy


class NodePlaces:
    """A map from the nodes of a lowered program to their places in the program before lowering.

    Args:
        origins: for a quantized program, the result of `find_origins`; the places then refer to the
            program before quantization.
    """

    def __init__(
        self,
        program: ExportedProgram,
        origins: Sequence[Mapping[str, int]] | None = None,
    ) -> None:
        self._places: dict[tuple[str, int], int] = {}  # by a node's name and graph id
        numbers = count()
        for number, module in enumerate(graph_modules(program.graph_module)):
            for node in module.graph.nodes:
                place: int | None
                if origins is None:
                    place = next(numbers)
                else:
                    place = origins[number].get(node.name)
                if place is not None:
                    self._places[node.name, id(module.graph)] = place

    def find(self, node: Node) -> int | None:
        """Return the place of the node that this node comes from, or None if lowering made it."""
        ancestors = list(node.meta.get("from_node") or ())
        while ancestors:
            ancestor = ancestors.pop()
            place = self._places.get((ancestor.name, ancestor.graph_id))
            if place is not None:
                return place
            ancestors += ancestor.from_node
        return None


def find_origins(
    quantized: ExportedProgram, program: ExportedProgram
) -> list[dict[str, int]]:
    """Map the nodes of each graph of a quantized program, by name, to their places in `program`.

    Names are used because saving and loading keeps them, but may change the number of nodes.
    """
    places = NodePlaces(program)
    origins = []
    for graph_module in graph_modules(quantized.graph_module):
        place_by_name = {}
        for node in graph_module.graph.nodes:
            place = places.find(node)
            if place is not None:
                place_by_name[node.name] = place
        origins.append(place_by_name)
    return origins


def map_places(
    quantized: ExportedProgram, origins: Sequence[Mapping[str, int]]
) -> dict[int, int]:
    """Map places in a quantized program to places in the program before quantization."""
    places = {}
    numbers = count()
    for number, graph_module in enumerate(graph_modules(quantized.graph_module)):
        for node in graph_module.graph.nodes:
            place = next(numbers)
            if node.name in origins[number]:
                places[place] = origins[number][node.name]
    return places
