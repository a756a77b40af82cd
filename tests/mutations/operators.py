"""Damages of what is computed: operators, delegates, scalars, scales, jumps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from executorch.exir import schema

from .parts import (
    Damage,
    Parts,
    calls,
    culprit_of,
    delegate_culprit,
    kernel_culprit,
    kernels,
    operator_index,
    operator_name,
    tensor,
    users,
)
from .payloads import ONE_TO_ONE, TWO_TO_ONE, Xnnpack

# Operators that take the same arguments. `alias_copy` does nothing.
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
_ORDERED = ("aten::sub.out", "aten::div.out", "aten::mm.out", "aten::bmm.out", "aten::bmm")
Chosen = tuple[schema.ExecutionPlan, int, schema.KernelCall, str]


def pick(random: Random, found: Sequence[Any]) -> Any:
    return random.choice(found) if found else None


def _kernels(parts: Parts) -> list[Chosen]:
    return [(plan, *each) for plan in parts.plans for each in kernels(plan)]


def replaced(parts: Parts, random: Random) -> Damage | None:
    """An operator becomes another one that takes the same arguments."""
    found = [
        (*each, other)
        for each in _kernels(parts)
        for group in _LIKE
        for other in group
        if each[3] in group and other != each[3]
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, name, other = chosen
    culprit = kernel_culprit(plan, number)
    call.op_index = operator_index(plan, other)
    return Damage(f"instruction {number}: {name} becomes {other}", (culprit,))


def relu_to_gelu(parts: Parts, random: Random) -> Damage | None:
    chosen = pick(random, [each for each in _kernels(parts) if each[3] == "aten::relu.out"])
    if not chosen:
        return None
    plan, number, call, name = chosen
    culprit = kernel_culprit(plan, number)
    plan.values.append(schema.EValue(schema.String("none")))
    call.args.insert(1, len(plan.values) - 1)
    call.op_index = operator_index(plan, "aten::gelu.out")
    return Damage(f"instruction {number}: {name} becomes aten::gelu.out", (culprit,))


def operands_swapped(parts: Parts, random: Random) -> Damage | None:
    found = [
        each
        for each in _kernels(parts)
        if each[3] in _ORDERED and tensor(each[0], each[2].args[0]) is not None
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, name = chosen
    call.args[0], call.args[1] = call.args[1], call.args[0]
    return Damage(f"instruction {number}: operands of {name}", (kernel_culprit(plan, number),))


def skipped(parts: Parts, random: Random) -> Damage | None:
    """A kernel is not called, what it writes keeps what was there."""
    found = [each for each in _kernels(parts) if tensor(each[0], each[2].args[-1]) is not None]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, name = chosen
    culprit = kernel_culprit(plan, number)
    nothing = schema.MoveCall(call.args[-1], call.args[-1])
    plan.chains[0].instructions[number] = schema.Instruction(nothing)
    return Damage(f"instruction {number}: {name} is skipped", (culprit,))


def scalar_changed(parts: Parts, random: Random) -> Damage | None:
    """A number or a flag that an operator is given, such as a dimension or a factor."""
    found = [
        (plan, number, call, name, place)
        for plan, number, call, name in _kernels(parts)
        for place, index in enumerate(call.args)
        if index >= 0
        and isinstance(plan.values[index].val, (schema.Int, schema.Double, schema.Bool))
        and not name.startswith("executorch_prim")
        and place < len(call.args) - 1
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, name, place = chosen
    old = plan.values[call.args[place]].val
    new: Any
    if isinstance(old, schema.Bool):
        new = schema.Bool(not old.bool_val)
    elif isinstance(old, schema.Int):
        new = schema.Int(old.int_val - 1 if old.int_val > 0 else old.int_val + 1)
    else:
        new = schema.Double(float(old.double_val) * 1.25 + 0.125)
    plan.values.append(schema.EValue(new))
    call.args[place] = len(plan.values) - 1
    what = f"instruction {number}: argument {place} of {name}: {old} becomes {new}"
    return Damage(what, (kernel_culprit(plan, number),))


def _swap_delegates(
    parts: Parts, random: Random, fits: Callable[[bool], bool], what: str
) -> Damage | None:
    """The bytes of two delegates of one backend change places."""
    own = parts.delegates()
    pairs = [
        (one, other)
        for index, one in enumerate(own)
        for other in own[index + 1 :]
        if fits(one[0] is other[0])
        and one[0].delegates[one[1]].id == other[0].delegates[other[1]].id
        and parts.payload(*one) != parts.payload(*other)
    ]
    if not (chosen := pick(random, pairs)):
        return None
    (plan, number), (other_plan, other_number) = chosen
    one, other = plan.delegates[number], other_plan.delegates[other_number]
    one.processed, other.processed = other.processed, one.processed
    # Of two methods that are nothing but a delegate it is as if they had changed places.
    kind = "delegate|order" if plan is not other_plan else "delegate"
    culprits = (
        replace(delegate_culprit(plan, number), kind=kind),
        replace(delegate_culprit(other_plan, other_number), kind=kind),
    )
    told = f"delegate {number} of {plan.name} and {other_number} of {other_plan.name}"
    return Damage(f"{what}: {told}", culprits)


def delegate_of_another_method(parts: Parts, random: Random) -> Damage | None:
    return _swap_delegates(parts, random, lambda same: not same, "swapped")


def delegate_of_another_partition(parts: Parts, random: Random) -> Damage | None:
    return _swap_delegates(parts, random, lambda same: same, "swapped")


def delegate_arguments_swapped(parts: Parts, random: Random) -> Damage | None:
    found = [
        (plan, number, call, one, other)
        for plan in parts.plans
        for number, call in calls(plan)
        if isinstance(call, schema.DelegateCall)
        for one in range(len(call.args))
        for other in range(one + 1, len(call.args))
        if call.args[one] != call.args[other]
        and (first := tensor(plan, call.args[one])) is not None
        and (second := tensor(plan, call.args[other])) is not None
        and (first.sizes, first.scalar_type) == (second.sizes, second.scalar_type)
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, one, other = chosen
    call.args[one], call.args[other] = call.args[other], call.args[one]
    return Damage(f"instruction {number}: arguments {one} and {other}", (culprit_of(plan, number),))


# Inside of delegates


def _xnnpack(parts: Parts) -> Iterator[tuple[schema.ExecutionPlan, int, Xnnpack]]:
    """Payloads, each once; its delegates are those that `_kept` names."""
    seen = set()
    for plan, number in parts.delegates():
        payload, index = parts.payload(plan, number), plan.delegates[number].processed.index
        if Xnnpack.fits(payload) and index not in seen:
            seen.add(index)
            yield plan, number, Xnnpack(payload)


def _kept(
    parts: Parts, plan: schema.ExecutionPlan, number: int, payload: Xnnpack, what: str
) -> Damage:
    index = plan.delegates[number].processed.index
    parts.program.backend_delegate_data[index].data = bytes(payload.bytes)
    return Damage(what, tuple(delegate_culprit(*user) for user in parts.users_of(index)))


def xnnpack_replaced(parts: Parts, random: Random) -> Damage | None:
    found = [
        (each, node, other)
        for each in _xnnpack(parts)
        for node in each[2].nodes()
        for group in (TWO_TO_ONE, ONE_TO_ONE)
        for other in group
        if node.kind in group and other != node.kind
    ]
    if not (chosen := pick(random, found)):
        return None
    (plan, number, payload), node, other = chosen
    known = TWO_TO_ONE | ONE_TO_ONE
    payload.bytes[node.kind_at] = other
    what = f"{known[node.kind]} becomes {known[other]} in delegate {number} of {plan.name}"
    return _kept(parts, plan, number, payload, what)


def xnnpack_operands_swapped(parts: Parts, random: Random) -> Damage | None:
    found = [
        (each, node)
        for each in _xnnpack(parts)
        for node in each[2].nodes()
        if TWO_TO_ONE.get(node.kind) in ("XNNSubtract", "XNNDiv") and len(node.inputs_at) == 2
    ]
    if not (chosen := pick(random, found)):
        return None
    (plan, number, payload), node = chosen
    payload.swap(*node.inputs_at)
    return _kept(parts, plan, number, payload, f"operands of {TWO_TO_ONE[node.kind]}")


def xnnpack_range_lost(parts: Parts, random: Random) -> Damage | None:
    """A relu that was fused into what is before it cuts off nearly all. (The zero below which it
    cuts is a default, which the flatbuffer leaves out.)"""
    found = [
        (each, node.most_at)
        for each in _xnnpack(parts)
        for node in each[2].nodes()
        if node.most_at is not None
    ]
    if not (chosen := pick(random, found)):
        return None
    (plan, number, payload), place = chosen
    payload.set_float(place, 0.05)
    return _kept(parts, plan, number, payload, f"a fused relu of delegate {number} of {plan.name}")


def add_sub_line(parts: Parts, random: Random) -> Damage | None:
    """In a payload of the add/sub backend: another operation, other operands, another alpha."""
    found = [
        (plan, number, lines, place)
        for plan, number in parts.delegates()
        if plan.delegates[number].id == "AddSubBackend"
        for lines in [[json.loads(x) for x in parts.payload(plan, number).splitlines()]]
        for place, line in enumerate(lines)
        if line["operation"] in ("add", "sub")
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, lines, place = chosen
    line = lines[place]
    changes = {
        "operation": {"add": "sub", "sub": "add"}[line["operation"]],
        "operands": line["operands"][::-1],
        "alpha": line.get("alpha", 1) + 1.0,
    }
    how = random.choice([*changes])
    lines[place] = line | {how: changes[how]}
    parts.set_payload(plan, number, "\n".join(map(json.dumps, lines)).encode())
    index = plan.delegates[number].processed.index
    what = f"{line} becomes {lines[place]}"
    return Damage(what, tuple(delegate_culprit(*user) for user in parts.users_of(index)))


# Quantization


def _quantizing(parts: Parts, kinds: Sequence[type], fields: Sequence[int]) -> list[Any]:
    return [
        (*each, place)
        for each in _kernels(parts)
        for place in fields
        if "quantize_per_tensor" in each[3]
        and isinstance(each[0].values[each[2].args[place]].val, tuple(kinds))
    ]


def scale(parts: Parts, random: Random) -> Damage | None:
    """A quarter more, for one of the operators that read it."""
    if not (chosen := pick(random, _quantizing(parts, [schema.Double], [1]))):
        return None
    plan, number, call, name, place = chosen
    old = float(plan.values[call.args[place]].val.double_val)
    plan.values.append(schema.EValue(schema.Double(old * 1.25)))
    call.args[place] = len(plan.values) - 1
    what = f"instruction {number}: scale of {name}: {old:.4g} becomes {old * 1.25:.4g}"
    return Damage(what, (kernel_culprit(plan, number),))


def zero_point(parts: Parts, random: Random) -> Damage | None:
    """16 steps away."""
    if not (chosen := pick(random, _quantizing(parts, [schema.Int], [2]))):
        return None
    plan, number, call, name, place = chosen
    old = plan.values[call.args[place]].val.int_val
    new = old - 16 if old > 0 else old + 16
    plan.values.append(schema.EValue(schema.Int(new)))
    call.args[place] = len(plan.values) - 1
    what = f"instruction {number}: zero point of {name}: {old} becomes {new}"
    return Damage(what, (kernel_culprit(plan, number),))


def scales_permuted(parts: Parts, random: Random) -> Damage | None:
    """Those per channel, each that of the next one, where an operator has them as a tensor."""
    found = [each for each in _kernels(parts) if "quantize_per_channel" in each[3]]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, name = chosen
    held = tensor(plan, call.args[1])
    assert held is not None
    buffer = parts.program.constant_buffer[held.data_buffer_idx]
    count = held.sizes[0]
    dtype = np.float64 if int(held.scalar_type) == 7 else np.float32
    size = count * np.dtype(dtype).itemsize
    values = np.frombuffer(bytes(buffer.storage[:size]), dtype)
    buffer.storage = np.roll(values, 1).tobytes() + bytes(buffer.storage[size:])
    culprits = [
        culprit_of(other, user)
        for other in parts.plans
        for place, value in enumerate(other.values)
        if isinstance(value.val, schema.Tensor)
        and value.val.allocation_info is None
        and value.val.data_buffer_idx == held.data_buffer_idx
        for user in users(other, place)
    ]
    return Damage(f"instruction {number}: scales of {name}", tuple(culprits))


def xnnpack_scale(parts: Parts, random: Random) -> Damage | None:
    found = [
        (each, value.scale_at)
        for each in _xnnpack(parts)
        for value in each[2].values()
        if value.scale_at is not None
    ]
    if not (chosen := pick(random, found)):
        return None
    (plan, number, payload), place = chosen
    old = payload.float_at(place)
    payload.set_float(place, old * 1.25)
    return _kept(parts, plan, number, payload, f"scale {old:.4g} becomes {old * 1.25:.4g}")


def xnnpack_zero_point(parts: Parts, random: Random) -> Damage | None:
    found = [
        (each, value.zero_at)
        for each in _xnnpack(parts)
        for value in each[2].values()
        if value.zero_at is not None
    ]
    if not (chosen := pick(random, found)):
        return None
    (plan, number, payload), place = chosen
    payload.set_int(place, lambda old: old - 16 if old > 0 else old + 16)
    return _kept(parts, plan, number, payload, "a zero point, by 16")


def xnnpack_scales_permuted(parts: Parts, random: Random) -> Damage | None:
    found = [
        (each, value)
        for each in _xnnpack(parts)
        for value in each[2].values()
        if len(value.scales_at) > 1 or value.scales_key in parts.named
    ]
    if not (chosen := pick(random, found)):
        return None
    (plan, number, payload), value = chosen
    places, key = value.scales_at, value.scales_key
    if key in parts.named:
        parts.named[key] = np.roll(np.frombuffer(parts.named[key], np.float32), 1).tobytes()
        sharing = [each for each in parts.delegates() if key.encode() in parts.payload(*each)]
        what = f"scales {key[:12]}, each that of the one before"
        return Damage(what, tuple(delegate_culprit(*each) for each in sharing))
    scales = [payload.float_at(place) for place in places]
    for place, value in zip(places, [*scales[1:], scales[0]], strict=True):
        payload.set_float(place, value)
    return _kept(parts, plan, number, payload, f"{len(places)} scales, each that of the next one")


# Jumps


def jump_target(parts: Parts, random: Random) -> Damage | None:
    found = [
        (plan, number, call)
        for plan in parts.plans
        for number, call in calls(plan)
        if isinstance(call, schema.JumpFalseCall)
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call = chosen
    culprit, old = culprit_of(plan, number), call.destination_instruction
    others = set(range(len(plan.chains[0].instructions) + 1)) - {old}
    call.destination_instruction = random.choice(sorted(others))
    what = f"instruction {number}: to {call.destination_instruction}, not to {old}"
    return Damage(what, (culprit,))


def condition_inverted(parts: Parts, random: Random) -> Damage | None:
    """The comparison whose outcome a jump waits for is another one."""
    found = [
        (*each, other)
        for each in _kernels(parts)
        for one in (("aten::gt.Scalar_out", "aten::le.Scalar_out"),)
        for other in one
        if each[3] in one and other != each[3]
    ]
    if not (chosen := pick(random, found)):
        return None
    plan, number, call, name, other = chosen
    culprit = kernel_culprit(plan, number)
    call.op_index = operator_index(plan, other)
    return Damage(f"instruction {number}: {name} becomes {operator_name(plan, call)}", (culprit,))
