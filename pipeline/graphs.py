"""The graphs of a program: its own, and those of its control flow."""

from __future__ import annotations

from collections.abc import Iterator

from executorch.exir.graph_module import get_control_flow_submodules
from torch.fx import GraphModule


def graph_modules(module: GraphModule) -> Iterator[GraphModule]:
    """A graph and, at any depth, the branches and bodies of the control flow in it."""
    yield module
    for _, branch, _ in get_control_flow_submodules(module):
        yield from graph_modules(branch)
