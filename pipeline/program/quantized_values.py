"""Finds out whether a program quantizes values, and in which floating-point dtypes it computes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name

_QUANTIZING = ("quantize_", "dequantize_", "choose_qparams_")


def dequantizes_constant(node: Node, name: str) -> bool:
    """Return whether a node dequantizes constants only; `name` is its `base_name`."""
    if not name.startswith("dequantize"):
        return False
    return {argument.op for argument in node.all_input_nodes} == {"get_attr"}


def is_quantized(program: ExportedProgram) -> bool:
    """Return whether a program quantizes values or computes with quantized ones."""
    return any(base_name(node).startswith(_QUANTIZING) for node in iter_nodes(program))


def float_dtypes(program: ExportedProgram) -> list[str]:
    """Return the floating-point dtypes in which a program computes, coarsest first."""
    dtypes = []
    for node in iter_nodes(program):
        if node.op == "call_function":
            values = pytree.tree_leaves(node.meta.get("val"))
            dtypes += [
                value.dtype
                for value in values
                if isinstance(value, Tensor) and value.dtype.is_floating_point
            ]
    coarsest_first = sorted({*dtypes}, key=lambda dtype: -torch.finfo(dtype).eps)
    return [str(dtype).removeprefix("torch.") for dtype in coarsest_first]
