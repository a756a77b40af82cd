"""Finds references that run the exported program, which would then be compared with itself.

The exporter refuses a program and its `module()` by their types. Here, a call shows that a function
or another module calls one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.nn.modules.module import register_module_forward_pre_hook

OWN_PROGRAM = (
    "no error, but calls an exported program with the same operators, which would be compared with "
    "itself; call the eager module, or pass no reference"
)


@contextmanager
def watching_programs() -> Iterator[list[GraphModule]]:
    """Collect the exported programs that are called as modules."""
    called: list[GraphModule] = []

    def note(module: Any, inputs: Any) -> None:
        # Only a program's `module()` has this, not just any graph module of `torch.fx`.
        if isinstance(module, GraphModule) and hasattr(
            module.graph._codegen, "pytree_info"
        ):
            called.append(module)

    hook = register_module_forward_pre_hook(note)
    try:
        yield called
    finally:
        hook.remove()


def has_same_operators(module: GraphModule, program: ExportedProgram) -> bool:
    """Return whether a module calls what a program calls; part of a model calls less."""
    return _list_operators(module.graph) == _list_operators(program.graph)


def _list_operators(graph: Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]
