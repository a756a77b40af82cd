"""Counts the float operators that quantization leaves in control flow."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import graph_modules
from pipeline.program.operators import operator_name


def count_float_operators(program: ExportedProgram) -> int:
    """Count the float operators in control flow, which no quantizer looks into."""
    count = 0
    # The first graph is the method's own, outside control flow.
    for body in list(graph_modules(program.graph_module))[1:]:
        for node in body.graph.nodes:
            if operator_name(node) and _gives_floats(node):
                count += 1
    return count


def _gives_floats(node: Node) -> bool:
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            return True
    return False
