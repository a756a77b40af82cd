"""What the nodes of a program are called: their operators, and the modules they are from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node

# Why partitioners left a node, in its metadata (pipeline/compile/inspect/reasons.py).
NOTES = "why_not_delegated"
# What torch writes where a pass made a node (torch/_export/passes/_node_metadata_hook.py).
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_CALL = re.compile(r"@\d+")  # how torch can mark the second and later calls of one module


def operator_of(node: Node) -> str:
    """The name of an operator, of ATen's dialect or the edge dialect, without its library and
    overload, and the same where it works in place: `add` of `aten.add_.Tensor`; "" for other
    nodes."""
    parts = getattr(node.target, "__name__", "").split(".")  # [[library,] name,] overload
    if node.op != "call_function" or len(parts) < 2:
        return ""
    return parts[-2] if parts[-2].startswith("__") else parts[-2].removesuffix("_")


def modules_of(node: Node) -> list[str]:
    """The qualified names of the modules that a node is from, outermost first, of which the first
    is "", the method's own."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path != _NO_MODULE]
    return [_CALL.sub("", path).removeprefix("L['self'].") for path in paths]
