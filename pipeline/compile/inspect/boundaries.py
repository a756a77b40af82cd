"""The data that crosses the boundaries of a method's delegates when the method is called."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir.sym_util import eval_upper_bound
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.program.graphs import called_delegate, control_flow_bodies
from pipeline.program.operators import base_name

# Operators that give the values that they are given, in another layout or dtype, or elsewhere.
_COPIES = frozenset({"_to_dim_order_copy", "_clone_dim_order", "_to_copy", "clone"})


@dataclass(frozen=True)
class Transfers:
    """Tensors that cross a boundary, and their bytes."""

    tensors: int = 0
    bytes: int = 0

    def __add__(self, other: Transfers) -> Transfers:
        return Transfers(self.tensors + other.tensors, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Transfers:
        return Transfers(times * self.tensors, times * self.bytes)


@dataclass(frozen=True)
class Boundary:
    """The data that goes into delegates and out of them in one call of a method, at most.

    Dynamic sizes count with their upper bounds, of a condition the dearer branch, and the body of a
    loop as often as it is run. What goes from one delegate to another counts on both sides.
    `copies` are operators beside a delegate that only change layout or dtype, or copy.
    """

    into: Transfers = field(default_factory=Transfers)
    out_of: Transfers = field(default_factory=Transfers)
    copies: int = 0

    def __add__(self, other: Boundary) -> Boundary:
        copies = self.copies + other.copies
        return Boundary(self.into + other.into, self.out_of + other.out_of, copies)

    @property
    def bytes(self) -> int:
        return self.into.bytes + self.out_of.bytes


def measure_boundary(module: GraphModule) -> Boundary:
    """Measure what crosses boundaries in a lowered graph and the control flow in it."""
    boundary = Boundary(copies=sum(map(_is_copy_beside_delegate, module.graph.nodes)))
    for node in module.graph.nodes:
        if called_delegate(node) is not None:
            given = [each.meta.get("val") for each in node.args[1:] if isinstance(each, Node)]
            boundary += Boundary(_count(given), _count([node.meta.get("val")]))
    for flow, bodies in control_flow_bodies(module).items():
        own, runs = [measure_boundary(body) for body in bodies], _max_runs(flow)
        dearest = max(own, key=lambda each: each.bytes)
        copies = sum(each.copies for each in own)
        boundary += Boundary(dearest.into * runs, dearest.out_of * runs, copies)
    return boundary


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


def _count(values: Iterable[Any]) -> Transfers:
    tensors = [v for v in pytree.tree_leaves(list(values)) if isinstance(v, torch.Tensor)]
    return Transfers(len(tensors), sum(map(_max_bytes, tensors)))


def _max_bytes(tensor: torch.Tensor) -> int:
    size = tensor.dtype.itemsize
    for dimension in tensor.shape:
        size *= _upper_bound(dimension)
    return size


def _upper_bound(size: int | torch.SymInt) -> int:
    """Return a size's greatest value, as memory is planned for it.

    Without a limit, that is the size of the example. One that is known only at run time counts 1.
    """
    try:
        return eval_upper_bound(size)
    except RuntimeError:
        return 1
