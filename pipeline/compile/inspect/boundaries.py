"""The data that crosses the boundaries of a method's delegates when the method is called."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from executorch.exir.sym_util import eval_upper_bound
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import called_delegate, control_flow_bodies
from pipeline.program.operators import base_name
from pipeline.report.records import BoundaryRecord, CrossingRecord

# Operators that give the values that they are given, in another layout or dtype, or elsewhere.
_COPIES = frozenset({"_to_dim_order_copy", "_clone_dim_order", "_to_copy", "clone"})


def measure_boundary(module: GraphModule) -> BoundaryRecord:
    """Measure the data that goes into delegates and out of them in one call of a method, at most.

    Dynamic sizes count with their upper bounds, of a condition the dearer branch, and the body of a
    loop as often as it is run. What goes from one delegate to another counts on both sides.
    `copies` are operators beside a delegate that only change layout or dtype, or copy.

    Args:
        module: a lowered graph, which is measured with the control flow in it.
    """
    crossings, copies = _measure(module)
    into, out_of = (CrossingRecord(tensors=n, bytes=size) for n, size in crossings.tolist())
    return {"into": into, "out_of": out_of, "copies": copies}


def _measure(module: GraphModule) -> tuple[npt.NDArray[np.object_], int]:
    """Return tensors and bytes, into delegates (first row) and out of them, and the copies."""
    copies = sum(map(_is_copy_beside_delegate, module.graph.nodes))
    crossings = np.zeros((2, 2), np.object_)  # Python's integers, which do not overflow
    for node in module.graph.nodes:
        if called_delegate(node) is not None:
            given = [each.meta.get("val") for each in node.args[1:] if isinstance(each, Node)]
            crossings += [_count(given), _count(node.meta.get("val"))]
    for flow, bodies in control_flow_bodies(module).items():
        own = [_measure(body) for body in bodies]
        dearest = max((each for each, _ in own), key=lambda each: each[:, 1].sum())
        crossings += dearest * _max_runs(flow)
        copies += sum(each for _, each in own)
    return crossings, copies


def _max_runs(flow: Node) -> int:
    """Return how often a control flow runs a body at most; a branch of a condition, once."""
    if flow.target is torch.ops.higher_order.cond:
        return 1
    # map_impl(body, xs, others), scan(body, carries, xs, others)
    xs: Any = flow.args[1] if flow.target is torch.ops.higher_order.map_impl else flow.args[2]
    value = xs[0].meta.get("val") if xs else None
    return _upper_bound(value.shape[0]) if isinstance(value, torch.Tensor) else 1


def _is_copy_beside_delegate(node: Node) -> bool:
    if base_name(node) not in _COPIES:
        return False
    makers = map(_maker, node.all_input_nodes)
    return any(called_delegate(each) is not None for each in (*makers, *node.users))


def _maker(node: Node) -> Node:
    """Return the node that made a value, which may be one of several that it made."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _count(values: Any) -> list[int]:
    tensors = [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    sizes = (math.prod([t.dtype.itemsize, *map(_upper_bound, t.shape)]) for t in tensors)
    return [len(tensors), sum(sizes)]


def _upper_bound(size: int | torch.SymInt) -> int:
    """Return a size's greatest value, as memory is planned for it.

    Without a limit, that is the size of the example. One that is known only at run time counts 1.
    """
    try:
        return eval_upper_bound(size)
    except RuntimeError:
        return 1
