"""The graphs of a program: its own, and those of its control flow."""

from __future__ import annotations

from collections.abc import Iterator

from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule

from pipeline.nodes import modules_of


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """A graph and, at any depth, the branches and bodies of the control flow in it."""
    yield module
    for _, branch, _ in get_control_flow_submodules(module):
        yield from graph_modules(branch)


def module_names(program: ExportedProgram) -> list[str]:
    """The qualified names of the sub-modules that a program's nodes are from, sorted."""
    nodes = (node for each in graph_modules(program.graph_module) for node in each.graph.nodes)
    return sorted({name for node in nodes for name in modules_of(node)} - {""})
