"""Damages to computations: operators, delegates, scalars, scales, branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
from executorch.exir import schema

from .parts import (
    Damage,
    Kernel,
    Parts,
    calls,
    culprit_of,
    damage,
    delegate_culprit,
    kernels,
    pairs_alike,
    rename_operator,
    set_argument,
    skip_call,
    swap,
    tensor,
)
from .payloads import Json, data_key, is_xnnpack, read_graph, tensors, write_graph

# Operators with the same arguments. `alias_copy` does nothing.
_LIKE = [
    ("aten::add.out", "aten::sub.out"),
    ("aten::mul.out", "aten::div.out"),
    ("aten::add.Scalar_out", "aten::sub.Scalar_out"),
    ("aten::mul.Scalar_out", "aten::div.Scalar_out"),
    ("aten::sum.IntList_out", "aten::mean.out"),
    ("aten::_softmax.out", "aten::_log_softmax.out"),
    ("aten::gt.Scalar_out", "aten::le.Scalar_out"),
    ("aten::relu.out", "aten::abs.out", "aten::alias_copy.out", "aten::tanh.out"),
    ("aten::tanh.out", "aten::sigmoid.out", "aten::alias_copy.out"),
    ("aten::abs.out", "aten::neg.out", "aten::alias_copy.out"),
]
_CONDITIONS = [("aten::gt.Scalar_out", "aten::le.Scalar_out")]
_ORDERED = ("aten::sub.out", "aten::div.out", "aten::mm.out", "aten::bmm")
_XNNPACK_LIKE = [
    ("XNNAdd", "XNNDiv", "XNNMinimum", "XNNMultiply", "XNNSubtract", "XNNMaximum"),
    ("XNNSigmoid", "XNNClamp", "XNNFloor", "XNNSquare", "XNNAbs", "XNNNegate", "XNNTanh"),
]


def _replacements(groups: list[tuple[str, ...]], name: str) -> list[str]:
    groups = [group for group in groups if name in group]
    return [other for group in groups for other in group if other != name]


@damage(lambda p: [(*k, o) for k in kernels(p) for o in _replacements(_CONDITIONS, k[3])],
        "condition_inverted")  # fmt: skip
@damage(lambda p: [(*k, o) for k in kernels(p) for o in _replacements(_LIKE, k[3])])
def replaced(parts: Parts, random: Random, *site: Any) -> Damage:
    """Replace an operator by another one with the same arguments."""
    plan, number, call, name, other = site
    culprit = culprit_of(plan, number)
    rename_operator(plan, call, other)
    return Damage(f"instruction {number}: {name} becomes {other}", (culprit,))


@damage(lambda p: [k for k in kernels(p, *_ORDERED) if tensor(k[0], k[2].args[0]) is not None])
def operands_swapped(parts: Parts, random: Random, *kernel: Any) -> Damage:
    plan, number, call, name = kernel
    swap(call.args, 0, 1)
    return Damage(f"instruction {number}: operands of {name}", (culprit_of(plan, number),))


@damage(lambda p: [k for k in kernels(p) if tensor(k[0], k[2].args[-1]) is not None])
def skipped(parts: Parts, random: Random, *kernel: Any) -> Damage:
    """Skip a kernel, so that its output keeps its previous content."""
    plan, number, call, name = kernel
    culprit = culprit_of(plan, number)
    skip_call(plan, number, call.args[-1])
    return Damage(f"instruction {number}: {name} is skipped", (culprit,))


def _scalars(parts: Parts) -> Iterator[tuple[Any, ...]]:
    for plan, number, call, name in kernels(parts, "::"):
        if name.startswith("executorch_prim"):
            continue
        for place, index in enumerate(call.args[:-1]):
            held = plan.values[index].val if index >= 0 else None
            if isinstance(held, (schema.Int, schema.Double, schema.Bool)):
                yield plan, number, call, name, place, held


@damage(_scalars)
def scalar_changed(parts: Parts, random: Random, *site: Any) -> Damage:
    """Change a number or a flag that an operator takes, such as a dimension or a factor."""
    plan, number, call, name, place, old = site
    if isinstance(old, schema.Double):
        old_value = float(old.double_val)
        new: Any = schema.Double(old_value * 1.25 + 0.125)
    else:
        new = schema.Bool(not old.bool_val) if isinstance(old, schema.Bool) else _nearby(old, 1)
    set_argument(plan, call, place, new)
    what = f"instruction {number}: argument {place} of {name}: {old} becomes {new}"
    return Damage(what, (culprit_of(plan, number),))


def _nearby(old: schema.Int, step: int) -> schema.Int:
    return schema.Int(old.int_val - step if old.int_val > 0 else old.int_val + step)


# Delegates


def _delegate_pairs(parts: Parts, same_method: bool) -> list[tuple[Any, ...]]:
    """Return pairs of one backend's delegates with different payloads."""
    return [
        (plan, number, other_plan, other)
        for (plan, number), (other_plan, other) in combinations(parts.delegates(), 2)
        if (plan is other_plan) == same_method
        and plan.delegates[number].id == other_plan.delegates[other].id
        and parts.payload(plan, number) != parts.payload(other_plan, other)
    ]


@damage(lambda parts: _delegate_pairs(parts, False), "delegate_of_another_method")
@damage(lambda parts: _delegate_pairs(parts, True), "delegate_of_another_partition")
def delegates_swapped(parts: Parts, random: Random, *site: Any) -> Damage:
    """Swap the bytes of two delegates."""
    plan, number, other_plan, other_number = site
    one, other = plan.delegates[number], other_plan.delegates[other_number]
    one.processed, other.processed = other.processed, one.processed
    # For two methods that are just a delegate, it looks as if the methods had been swapped.
    kind = "delegate|order" if plan is not other_plan else "delegate"
    culprits = (
        replace(delegate_culprit(plan, number), kind=kind),
        replace(delegate_culprit(other_plan, other_number), kind=kind),
    )
    return Damage(
        f"delegate {number} of {plan.name} and {other_number} of {other_plan.name}", culprits
    )


def _delegate_arguments(parts: Parts) -> Iterator[tuple[Any, ...]]:
    for plan in parts.plans:
        for number, call in calls(plan):
            if isinstance(call, schema.DelegateCall):
                for _, one, other in pairs_alike(plan, call.args):
                    yield plan, number, call, one, other


@damage(_delegate_arguments)
def delegate_arguments_swapped(parts: Parts, random: Random, *site: Any) -> Damage:
    plan, number, call, one, other = site
    swap(call.args, one, other)
    return Damage(f"instruction {number}: arguments {one} and {other}", (culprit_of(plan, number),))


# Inside delegates


def _graphs(parts: Parts) -> Iterator[tuple[int, Json]]:
    """Yield XNNPACK's payloads, with their index in the program's table."""
    for index, held in enumerate(parts.program.backend_delegate_data):
        if is_xnnpack(bytes(held.data)):
            yield index, read_graph(bytes(held.data))


def _nodes(parts: Parts) -> list[tuple[int, Json, Json]]:
    return [(index, graph, node) for index, graph in _graphs(parts) for node in graph["xnodes"]]


def _replace_payload(parts: Parts, index: int, payload: bytes, what: str) -> Damage:
    parts.program.backend_delegate_data[index].data = payload
    culprits = parts.users_of(lambda plan, n: plan.delegates[n].processed.index == index)
    return Damage(what, culprits)


def _xnnpack_replacements(parts: Parts) -> Iterator[tuple[Any, ...]]:
    for index, graph, node in _nodes(parts):
        for other in _replacements(_XNNPACK_LIKE, node["xnode_union_type"]):
            yield index, graph, node, other


@damage(_xnnpack_replacements)
def xnnpack_replaced(parts: Parts, random: Random, *site: Any) -> Damage:
    index, graph, node, other = site
    what = f"{node['xnode_union_type']} becomes {other} in payload {index}"
    node["xnode_union_type"] = other
    return _replace_payload(parts, index, write_graph(graph), what)


@damage(lambda p: [n for n in _nodes(p) if n[2]["xnode_union_type"] in ("XNNSubtract", "XNNDiv")])
def xnnpack_operands_swapped(parts: Parts, random: Random, *site: Any) -> Damage:
    index, graph, node = site
    union = node["xnode_union"]
    union["input1_id"], union["input2_id"] = union["input2_id"], union["input1_id"]
    what = f"operands of {node['xnode_union_type']}"
    return _replace_payload(parts, index, write_graph(graph), what)


@damage(lambda parts: [site for site in _nodes(parts) if "output_min_max" in site[2]])
def xnnpack_range_lost(parts: Parts, random: Random, *site: Any) -> Damage:
    """Remove a relu that was fused into the operator before it."""
    index, graph, node = site
    del node["output_min_max"]
    what = f"the range of {node['xnode_union_type']} in payload {index}"
    return _replace_payload(parts, index, write_graph(graph), what)


# Quantization


def _quantizing(parts: Parts, place: int) -> list[Kernel]:
    return [
        kernel
        for kernel in kernels(parts, "quantize_per_tensor")
        if isinstance(kernel[0].values[kernel[2].args[place]].val, (schema.Double, schema.Int))
    ]


@damage(lambda parts: _quantizing(parts, 1))
def scale(parts: Parts, random: Random, *kernel: Any) -> Damage:
    """Increase a scale by a quarter, for one of the operators that read it."""
    plan, number, call, name = kernel
    old = float(plan.values[call.args[1]].val.double_val)
    set_argument(plan, call, 1, schema.Double(old * 1.25))
    what = f"instruction {number}: scale of {name}: {old:.4g} becomes {old * 1.25:.4g}"
    return Damage(what, (culprit_of(plan, number),))


@damage(lambda parts: _quantizing(parts, 2))
def zero_point(parts: Parts, random: Random, *kernel: Any) -> Damage:
    """Move a zero point by 16 steps."""
    plan, number, call, name = kernel
    old = plan.values[call.args[2]].val
    new = _nearby(old, 16)
    set_argument(plan, call, 2, new)
    what = f"instruction {number}: zero point of {name}: {old.int_val} becomes {new.int_val}"
    return Damage(what, (culprit_of(plan, number),))


def _xnnpack_quantization(parts: Parts, key: str) -> Iterator[tuple[int, Json, Json]]:
    """Yield the payloads' quantization parameters with a nondefault value of this key."""
    for index, graph in _graphs(parts):
        for _, parameters, _ in tensors(graph):
            if "zero_point" in parameters and parameters[key]:
                yield index, graph, parameters


@damage(lambda parts: _xnnpack_quantization(parts, "scale"))
def xnnpack_scale(parts: Parts, random: Random, *site: Any) -> Damage:
    index, graph, parameters = site
    parameters["scale"] *= 1.25
    what = f"a scale becomes {parameters['scale']:.4g}"
    return _replace_payload(parts, index, write_graph(graph), what)


@damage(lambda parts: _xnnpack_quantization(parts, "zero_point"))
def xnnpack_zero_point(parts: Parts, random: Random, *site: Any) -> Damage:
    index, graph, parameters = site
    parameters["zero_point"] += -16 if parameters["zero_point"] > 0 else 16
    return _replace_payload(parts, index, write_graph(graph), "a zero point, by 16")


def _channel_scales(parts: Parts) -> Iterator[tuple[int, Json, Json, str]]:
    for index, graph in _graphs(parts):
        for _, parameters, _ in tensors(graph):
            if "channel_dim" in parameters:
                key = data_key(graph, parameters["scale_buffer_idx"])
                if key in parts.named or len(parameters["scale"]) > 1:
                    yield index, graph, parameters, key


@damage(_channel_scales)
def xnnpack_scales_permuted(parts: Parts, random: Random, *site: Any) -> Damage:
    """Give each channel the scale of a neighboring channel."""
    index, graph, parameters, key = site
    if key in parts.named:
        parts.named[key] = np.roll(np.frombuffer(parts.named[key], np.float32), 1).tobytes()
        culprits = parts.users_of(lambda *user: key.encode() in parts.payload(*user))
        return Damage(f"scales {key[:12]}, each that of the one before", culprits)
    parameters["scale"] = [*parameters["scale"][1:], parameters["scale"][0]]
    what = f"{len(parameters['scale'])} scales, each that of the next one"
    return _replace_payload(parts, index, write_graph(graph), what)
