"""The graphs of a program: its own, and those of its control flow."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.traceback import NodeSource, NodeSourceAction

from pipeline.program.operators import modules_of


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """A graph and, at any depth, the branches and bodies of the control flow in it."""
    yield module
    for _, branch, _ in get_control_flow_submodules(module):
        yield from graph_modules(branch)


def copied(module: GraphModule) -> GraphModule:
    """A deep copy, whose nodes tell which they were made of, as those that torch makes do."""
    twin = copy.deepcopy(module)
    for own, other in zip(graph_modules(module), graph_modules(twin), strict=True):
        for node, copied_node in zip(own.graph.nodes, other.graph.nodes, strict=True):
            source = NodeSource(node, "copied", NodeSourceAction.CREATE)
            copied_node.meta = {**copied_node.meta, "from_node": [source]}
    return twin


def module_names(program: ExportedProgram) -> list[str]:
    """The qualified names of the sub-modules that a program's nodes are from, sorted."""
    nodes = (node for each in graph_modules(program.graph_module) for node in each.graph.nodes)
    return sorted({name for node in nodes for name in modules_of(node)} - {""})
