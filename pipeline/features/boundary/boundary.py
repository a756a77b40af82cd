"""Measures the data that a lowered method moves into and out of delegates."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from executorch.exir.sym_util import eval_upper_bound
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import called_delegate, control_flow_bodies
from pipeline.program.operators import base_name

# Operators that return the values of their input, in another layout, dtype or memory.
_COPIES = frozenset({"_to_dim_order_copy", "_clone_dim_order", "_to_copy", "clone"})


def measure_boundary(program: ExportedProgram) -> dict[str, Any]:
    """Return the field `boundary` of a `store.compiled.DELEGATION`.

    It is the upper bound of the data that one call of a method moves into and out of delegates.
    """
    # Dynamic sizes count with their upper bounds, a condition with its dearer branch, and a loop's
    # body as often as it runs. Data that passes between two delegates counts for both.
    # `copies` are operators next to a delegate that only change layout or dtype, or copy.
    crossings, copies = _measure_crossings(program.graph_module)
    records = [
        {"tensors": tensors, "bytes": size} for tensors, size in crossings.tolist()
    ]
    boundary = {"into": records[0], "out_of": records[1], "copies": copies}
    return {"boundary": boundary}


def _measure_crossings(module: GraphModule) -> tuple[npt.NDArray[np.object_], int]:
    """Return the tensors and bytes that enter (first row) and leave delegates, and the copies."""
    copies = sum(map(_is_copy_beside_delegate, module.graph.nodes))
    crossings = np.zeros((2, 2), np.object_)  # Python's integers, which don't overflow
    for node in module.graph.nodes:
        if called_delegate(node) is not None:
            arguments = [
                argument for argument in node.args[1:] if isinstance(argument, Node)
            ]
            inputs = [argument.meta.get("val") for argument in arguments]
            crossings += [_count(inputs), _count(node.meta.get("val"))]
    for flow, bodies in control_flow_bodies(module).items():
        measured = [_measure_crossings(body) for body in bodies]
        # Only one branch runs, so the dearer one is the upper bound.
        dearest = max((body for body, _ in measured), key=lambda body: body[:, 1].sum())
        crossings += dearest * _max_runs(flow)
        copies += sum(body_copies for _, body_copies in measured)
    return crossings, copies


def _max_runs(flow: Node) -> int:
    """Return the maximum number of runs of a control flow's body; 1 for a condition's branch."""
    if flow.target is torch.ops.higher_order.cond:
        return 1
    # map_impl(body, xs, others), scan(body, carries, xs, others)
    xs: Any = flow.args[2]
    if flow.target is torch.ops.higher_order.map_impl:
        xs = flow.args[1]
    value = None
    if xs:
        value = xs[0].meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 1
    return _upper_bound(value.shape[0])


def _is_copy_beside_delegate(node: Node) -> bool:
    if base_name(node) not in _COPIES:
        return False
    makers = map(_maker, node.all_input_nodes)
    return any(
        called_delegate(neighbour) is not None for neighbour in (*makers, *node.users)
    )


def _maker(node: Node) -> Node:
    """Return the node that computed a value, looking through `getitem`."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _count(values: Any) -> list[int]:
    """Return how many of the values are tensors, and the bytes of those tensors."""
    tensors = 0
    size = 0
    for value in pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            tensors += 1
            size += math.prod([value.dtype.itemsize, *map(_upper_bound, value.shape)])
    return [tensors, size]


def _upper_bound(size: int | torch.SymInt) -> int:
    """Return a size's upper bound; its example if unbounded, 1 if known only at run time."""
    try:
        return eval_upper_bound(size)
    except RuntimeError:
        return 1
