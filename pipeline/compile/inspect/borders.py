"""What crosses the borders of a method's delegates when it is called."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.sym_util import eval_upper_bound
from torch.fx import GraphModule, Node

from pipeline.program.operators import operator_of

# Operators that give the values that they are given, in another layout or dtype, or elsewhere.
_COPIES = frozenset({"_to_dim_order_copy", "_clone_dim_order", "_to_copy", "clone"})


@dataclass(frozen=True)
class Crossing:
    """Tensors that cross a border, and their bytes."""

    tensors: int = 0
    bytes: int = 0

    def __add__(self, other: Crossing) -> Crossing:
        return Crossing(self.tensors + other.tensors, self.bytes + other.bytes)

    def times(self, number: int) -> Crossing:
        return Crossing(number * self.tensors, number * self.bytes)


@dataclass(frozen=True)
class Border:
    """What goes into delegates and out of them in one call of a method, at most: dynamic sizes
    count with their upper bounds, of a condition the dearer branch, and the body of a loop as often
    as it is run. What goes from one delegate to another counts on both sides. `copies` are those
    operators beside a delegate that only change layout or dtype, or copy."""

    into: Crossing = field(default_factory=Crossing)
    out_of: Crossing = field(default_factory=Crossing)
    copies: int = 0

    def __add__(self, other: Border) -> Border:
        copies = self.copies + other.copies
        return Border(self.into + other.into, self.out_of + other.out_of, copies)

    def times(self, number: int) -> Border:
        """Of a body that is run so often; its operators are there once."""
        return Border(self.into.times(number), self.out_of.times(number), self.copies)

    @property
    def bytes(self) -> int:
        return self.into.bytes + self.out_of.bytes


def border_of(module: GraphModule) -> Border:
    """Of a lowered graph and the control flow in it."""
    border = Border(copies=sum(map(_copies_at_a_border, module.graph.nodes)))
    for node in module.graph.nodes:
        if _is_delegate(node):
            given = [each for each in node.args[1:] if isinstance(each, Node)]
            into = _crossing(each.meta.get("val") for each in given)
            border += Border(into, _crossing([node.meta.get("val")]))
    bodies: dict[Node, list[Border]] = {}
    for _, body, flow in get_control_flow_submodules(module):
        bodies.setdefault(flow, []).append(border_of(body))
    for flow, own in bodies.items():
        dearest = max(own, key=lambda each: each.bytes)
        border += Border(dearest.into, dearest.out_of, sum(each.copies for each in own)).times(
            _runs(flow)
        )
    return border


def _runs(flow: Node) -> int:
    """How often the body of a control flow is run at most; one branch of a condition, once."""
    if flow.target is torch.ops.higher_order.cond:
        return 1
    # map_impl(body, xs, others), scan(body, carries, xs, others)
    xs: Any = flow.args[1] if flow.target is torch.ops.higher_order.map_impl else flow.args[2]
    value = xs[0].meta.get("val") if xs else None
    return _bound(value.shape[0]) if isinstance(value, torch.Tensor) else 1


def _is_delegate(node: Node) -> bool:
    return node.op == "call_function" and node.target is executorch_call_delegate


def _copies_at_a_border(node: Node) -> bool:
    if operator_of(node) not in _COPIES:
        return False
    makers = (_maker(each) for each in node.all_input_nodes)
    return any(map(_is_delegate, (*makers, *node.users)))


def _maker(node: Node) -> Node:
    """What made a value that may be one of several."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _crossing(values: Iterable[Any]) -> Crossing:
    tensors = list(_tensors(values))
    return Crossing(len(tensors), sum(map(_size, tensors)))


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _size(tensor: torch.Tensor) -> int:
    """Its bytes, at most."""
    size = tensor.dtype.itemsize
    for dimension in tensor.shape:
        size *= _bound(dimension)
    return size


def _bound(size: int | torch.SymInt) -> int:
    """Its greatest value, as memory is planned for it: without a limit, that of the example. One
    that is not known before it runs counts as 1."""
    try:
        return eval_upper_bound(size)
    except RuntimeError:
        return 1
