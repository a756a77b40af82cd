"""Names the operators that nodes call.

This module doesn't import torch at load time, since backends' options are read without torch.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.fx import Node

# ExecuTorch's metadata key for the partition of a node.
TAG = "delegation_tag"
# The metadata key for the reasons why partitioners left a node (pipeline/features/reasons).
NOTES = "why_not_delegated"


def base_name(node: Node) -> str:
    """Return the name of a node's operator, without library, overload and in-place underscore.

    The name is the same in ATen's dialect and the edge dialect: `add` for `aten.add_.Tensor`. It is
    "" for a node that calls no operator.
    """
    # The parts are [[library,] name,] overload.
    parts = getattr(node.target, "__name__", "").split(".")
    if node.op != "call_function" or len(parts) < 2:
        return ""
    if parts[-2].startswith("__"):
        return parts[-2]
    return parts[-2].removesuffix("_")


_MOVES = """
    _clone_dim_order _reshape_alias _to_copy _to_dim_order_copy _unsafe_view alias as_strided clone
    contiguous detach expand flatten lift_fresh permute reshape select slice split split_with_sizes
    squeeze t to transpose unbind unflatten unsqueeze view
"""
_MOVING = frozenset(_MOVES.split())


def only_moves(node: Node) -> bool:
    """Return whether a call only moves values, as a view or a copy in the same dtype does."""
    name = base_name(node)
    if name not in _MOVING and name.removesuffix("_copy") not in _MOVING:
        return False
    values = [
        argument.meta.get("val") for argument in (node, *node.all_input_nodes[:1])
    ]
    dtypes = {getattr(value, "dtype", None) for value in values}
    return len(dtypes - {None}) < 2  # a cast computes


def operator_name(node: Node) -> str:
    """Return the name in an operator's schema, such as `aten.add.Tensor` or `aten.relu`.

    Until the program is emitted, an operator that changes its arguments is the first argument of
    `auto_functionalized`. The name is "" for control flow, `getitem`, planned memory, and nodes
    that call nothing.
    """
    target: Any = node.target
    if node.op != "call_function" or target is operator.getitem:
        return ""
    scratch = (target.__module__, target.__name__) == (
        "executorch.exir.memory",
        "alloc",
    )
    higher_order = control_flow_name(node)
    if higher_order.startswith("auto_functionalized"):
        target = node.args[0]
    elif scratch or higher_order:
        return ""
    if hasattr(target, "name"):
        return target.name().replace("::", ".")
    return target.__name__


def control_flow_name(node: Node) -> str:
    """Return the name of a node's higher-order operator, such as `cond` or `scan`, or ""."""
    from torch._ops import HigherOrderOperator

    if isinstance(node.target, HigherOrderOperator):
        return node.target.name()
    return ""


def node_label(node: Node) -> str:
    """Return a node's label in messages: `aten.linear.default`, or its name if it calls nothing."""
    target: Any = node.target
    if node.op != "call_function":
        return node.name
    if hasattr(target, "_overloadname"):
        overload = target._overloadname
        name = operator_name(node).removesuffix(f".{overload}")
        return f"{name}.{overload}"
    return control_flow_name(node) or str(getattr(target, "__name__", target))
