"""Damages of what holds a package together: outputs, inputs, methods, state, memory, the file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from executorch.exir import schema

from .operators import pick
from .parts import (
    Culprit,
    Damage,
    Parts,
    calls,
    elements,
    kernels,
    reads,
    tensor,
    users,
)
from .samples import Files

_SHARED = 2  # the arena that methods share
_SIZES = {0: 1, 1: 1, 3: 4, 4: 8, 6: 4, 7: 8, 11: 1}


def _of_package(plan: schema.ExecutionPlan) -> tuple[Culprit, ...]:
    return (Culprit(plan.name, ""),)


# Inputs and outputs


def output_dropped(parts: Parts, random: Random) -> Damage | None:
    if not (plan := pick(random, parts.plans)):
        return None
    place = random.randrange(len(plan.outputs))
    del plan.outputs[place]
    return Damage(f"output {place} of {plan.name}", (Culprit(plan.name, ""),))


def _pairs(plan: schema.ExecutionPlan, places: Sequence[int], alike: bool) -> list[Any]:
    return [
        (plan, one, other)
        for one in range(len(places))
        for other in range(one + 1, len(places))
        if (first := tensor(plan, places[one])) is not None
        and (second := tensor(plan, places[other])) is not None
        and places[one] != places[other]
        and ((first.sizes, first.scalar_type) == (second.sizes, second.scalar_type)) == alike
    ]


def _outputs_swapped(parts: Parts, random: Random, alike: bool) -> Damage | None:
    found = [pair for plan in parts.plans for pair in _pairs(plan, plan.outputs, alike)]
    if not (chosen := pick(random, found)):
        return None
    plan, one, other = chosen
    plan.outputs[one], plan.outputs[other] = plan.outputs[other], plan.outputs[one]
    return Damage(f"outputs {one} and {other} of {plan.name}", (Culprit(plan.name, ""),))


def outputs_reordered(parts: Parts, random: Random) -> Damage | None:
    """Two of the same shape."""
    return _outputs_swapped(parts, random, True)


def outputs_of_two_shapes_reordered(parts: Parts, random: Random) -> Damage | None:
    return _outputs_swapped(parts, random, False)


def output_aliased(parts: Parts, random: Random) -> Damage | None:
    """An output is what another one of its shape is."""
    found = [pair for plan in parts.plans for pair in _pairs(plan, plan.outputs, True)]
    if not (chosen := pick(random, found)):
        return None
    plan, one, other = chosen
    plan.outputs[one] = plan.outputs[other]
    what = f"output {one} of {plan.name} is output {other}"
    return Damage(what, (Culprit(plan.name, ""),))


def input_returned(parts: Parts, random: Random) -> Damage | None:
    """An output is an input of its shape, or another value that was computed on the way."""
    found = []
    for plan in parts.plans:
        for place, index in enumerate(plan.outputs):
            wanted = tensor(plan, index)
            for other, value in enumerate(plan.values):
                held = value.val
                if (
                    wanted is not None
                    and isinstance(held, schema.Tensor)
                    and held.allocation_info is not None
                    and other not in plan.outputs
                    and (held.sizes, held.scalar_type) == (wanted.sizes, wanted.scalar_type)
                    and (other in plan.inputs or users(plan, other))
                ):
                    found.append((plan, place, other))
    if not (chosen := pick(random, found)):
        return None
    plan, place, other = chosen
    plan.outputs[place] = other
    what = f"output {place} of {plan.name} is value {other}"
    return Damage(what, (Culprit(plan.name, "operator|delegate"),))


def inputs_swapped(parts: Parts, random: Random) -> Damage | None:
    """Two of the same shape."""
    found = [pair for plan in parts.plans for pair in _pairs(plan, plan.inputs, True)]
    if not (chosen := pick(random, found)):
        return None
    plan, one, other = chosen
    plan.inputs[one], plan.inputs[other] = plan.inputs[other], plan.inputs[one]
    what = f"inputs {one} and {other} of {plan.name}"
    return Damage(what, (Culprit(plan.name, "operator|delegate"),))


def _declared(parts: Parts) -> list[tuple[schema.ExecutionPlan, int, schema.Tensor]]:
    return [
        (plan, index, held)
        for plan in parts.plans
        for index in dict.fromkeys([*plan.inputs, *plan.outputs])
        if (held := tensor(plan, index)) is not None
    ]


def declared_dtype(parts: Parts, random: Random) -> Damage | None:
    if not (chosen := pick(random, _declared(parts))):
        return None
    plan, index, held = chosen
    held.scalar_type = type(held.scalar_type)(3 if int(held.scalar_type) == 6 else 6)
    return Damage(f"dtype of value {index} of {plan.name}", _of_package(plan))


def declared_size(parts: Parts, random: Random) -> Damage | None:
    """One less, so that there is room for it."""
    found = [each for each in _declared(parts) if any(size > 1 for size in each[2].sizes)]
    if not (chosen := pick(random, found)):
        return None
    plan, index, held = chosen
    dimension = random.choice([n for n, size in enumerate(held.sizes) if size > 1])
    held.sizes[dimension] -= 1
    what = f"size {dimension} of value {index} of {plan.name}"
    return Damage(what, (Culprit(plan.name, "operator|delegate"),))


def dim_order(parts: Parts, random: Random) -> Damage | None:
    """A declared input is read in another order of its dimensions."""
    return _reorder(
        random,
        [
            (plan, index, held)
            for plan, index, held in _declared(parts)
            if index in plan.inputs
        ],
        "input",
    )  # fmt: skip


def dim_order_inside(parts: Parts, random: Random) -> Damage | None:
    """A tensor that is computed on the way is read and written in another order."""
    found = [
        (plan, index, held)
        for plan in parts.plans
        for index, value in enumerate(plan.values)
        if isinstance(held := value.val, schema.Tensor)
        and index not in plan.inputs
        and users(plan, index)
    ]
    return _reorder(random, found, "value")


def _reorder(random: Random, found: Sequence[Any], kind: str) -> Damage | None:
    found = [
        each for each in found if len([size for size in each[2].sizes if size > 1]) > 1
    ]  # where it makes a difference
    if not (chosen := pick(random, found)):
        return None
    plan, index, held = chosen
    wide = [place for place, d in enumerate(held.dim_order) if held.sizes[d] > 1]
    one, other = random.sample(wide, 2)
    order = list(held.dim_order)
    order[one], order[other] = order[other], order[one]
    what = f"{kind} {index} of {plan.name}: dimensions in the order {order}, not {held.dim_order}"
    held.dim_order = order
    return Damage(what, (Culprit(plan.name, "operator|delegate"),))


# Methods


def _all(parts: Parts) -> tuple[Culprit, ...]:
    return tuple(Culprit(plan.name, "") for plan in parts.program.execution_plan)


def method_renamed(parts: Parts, random: Random) -> Damage | None:
    plan = random.choice(parts.program.execution_plan)
    culprits = Culprit(plan.name, ""), Culprit(f"{plan.name}2", "")
    plan.name = f"{plan.name}2"
    return Damage(f"{plan.name} was without the 2", culprits)


def methods_swapped(parts: Parts, random: Random) -> Damage | None:
    if len(parts.plans) < 2:
        return None
    one, other = random.sample(parts.plans, 2)
    one.name, other.name = other.name, one.name
    culprits = [Culprit(each.name, "operator|delegate") for each in (one, other)]
    return Damage(f"{one.name} and {other.name}", tuple(culprits))


def method_missing(parts: Parts, random: Random) -> Damage | None:
    plan = random.choice(parts.program.execution_plan)
    if len(parts.program.execution_plan) == 1:
        return None
    parts.program.execution_plan.remove(plan)
    return Damage(plan.name, _of_package(plan))


def method_extra(parts: Parts, random: Random) -> Damage | None:
    plan = copy.deepcopy(random.choice(parts.program.execution_plan))
    plan.name = f"{plan.name}_more"
    parts.program.execution_plan.append(plan)
    return Damage(plan.name, _of_package(plan))


def constant_method(parts: Parts, random: Random) -> Damage | None:
    plans = [p for p in parts.program.execution_plan if not p.chains[0].instructions]
    if not (plan := pick(random, plans)):
        return None
    value = plan.values[random.choice(plan.outputs)]
    held = value.val
    if isinstance(held, schema.Bool):
        held.bool_val = not held.bool_val
    elif isinstance(held, schema.Int):
        held.int_val += 1
    else:
        held.double_val = float(held.double_val) * 1.001
    return Damage(f"{plan.name} gives {held}", _of_package(plan))


# State


def _write_backs(parts: Parts) -> list[tuple[schema.ExecutionPlan, int, schema.KernelCall]]:
    """The copies at the end of a call into a buffer that the next call reads."""
    return [
        (plan, number, call)
        for plan in parts.plans
        for number, call, name in kernels(plan)
        if name == "aten::copy_"
    ]


def initial_state(parts: Parts, random: Random) -> Damage | None:
    """What a buffer begins with."""
    buffers = [b for b in (parts.mutable or [])[1:] if len(b.storage) >= 4]
    if not (buffer := pick(random, buffers)):
        return None
    values = np.frombuffer(bytes(buffer.storage[: len(buffer.storage) // 4 * 4]), np.float32).copy()
    values[random.randrange(values.size)] += 1
    rest = bytes(buffer.storage[values.nbytes :])
    buffer.storage = values.tobytes() + rest
    index = next(n for n, each in enumerate(parts.mutable or []) if each is buffer)
    return Damage("the initial value of a buffer, by 1", _holders(parts, index))


def initial_state_lost(parts: Parts, random: Random) -> Damage | None:
    count = len(parts.mutable or [])
    if count < 2:
        return None
    index = random.randrange(1, count)
    culprits = _holders(parts, index)
    for plan in parts.plans:
        for value in plan.values:
            held = value.val
            if isinstance(held, schema.Tensor) and held.allocation_info is not None:
                held.data_buffer_idx = 0 if held.data_buffer_idx == index else held.data_buffer_idx
    return Damage("a buffer begins with zeros", culprits)


def _holders(parts: Parts, index: int) -> tuple[Culprit, ...]:
    return tuple(
        Culprit(plan.name, "state|operator|delegate")
        for plan in parts.plans
        if any(
            isinstance(v.val, schema.Tensor)
            and v.val.allocation_info is not None
            and v.val.data_buffer_idx == index
            for v in plan.values
        )
    )


def write_back_removed(parts: Parts, random: Random) -> Damage | None:
    if not (chosen := pick(random, _write_backs(parts))):
        return None
    plan, number, call = chosen
    nothing = schema.MoveCall(call.args[0], call.args[0])
    plan.chains[0].instructions[number] = schema.Instruction(nothing)
    return Damage(f"instruction {number} of {plan.name}", (Culprit(plan.name, "state"),))


def state_split(parts: Parts, random: Random) -> Damage | None:
    """What is written back goes elsewhere than where the next call reads it."""
    if not (chosen := pick(random, _write_backs(parts))):
        return None
    plan, number, call = chosen
    held = tensor(plan, call.args[0])
    assert held is not None and held.allocation_info is not None
    twin = copy.deepcopy(held)
    _move_behind(plan, twin)
    twin.data_buffer_idx = 0
    plan.values.append(schema.EValue(twin))
    call.args[0] = call.args[-1] = len(plan.values) - 1  # itself, and what it returns
    return Damage(f"instruction {number} of {plan.name}", (Culprit(plan.name, "state"),))


def shared_state_split(parts: Parts, random: Random) -> Damage | None:
    """What methods share, one of them has a copy of."""
    sharing = [plan for plan in parts.plans if len(plan.non_const_buffer_sizes) > _SHARED]
    if len(sharing) < 2:
        return None
    plan = random.choice(sharing)
    own = len(plan.non_const_buffer_sizes)
    plan.non_const_buffer_sizes.append(plan.non_const_buffer_sizes[_SHARED])
    for value in plan.values:
        place = value.val.allocation_info if isinstance(value.val, schema.Tensor) else None
        if place is not None and place.memory_id == _SHARED:
            place.memory_id = own
    culprits = tuple(Culprit(each.name, "state|operator") for each in sharing)
    return Damage(f"{plan.name} has memory {own} for its state", culprits)


# Memory


def _move_behind(plan: schema.ExecutionPlan, held: schema.Tensor) -> None:
    """Gives a tensor memory of its own at the end of its arena."""
    place = held.allocation_info
    assert place is not None
    end = -(-plan.non_const_buffer_sizes[place.memory_id] // 16) * 16
    place.memory_offset_low, place.memory_offset_high = end, 0
    plan.non_const_buffer_sizes[place.memory_id] = end + _bytes(held)


def _bytes(held: schema.Tensor) -> int:
    return elements(held) * _SIZES.get(int(held.scalar_type), 8)


def memory_too_small(parts: Parts, random: Random) -> Damage | None:
    found = [plan for plan in parts.plans if sum(plan.non_const_buffer_sizes[1:])]
    if not (plan := pick(random, found)):
        return None
    arena = random.choice([n for n, size in enumerate(plan.non_const_buffer_sizes) if n and size])
    plan.non_const_buffer_sizes[arena] //= 2
    return Damage(f"arena {arena} of {plan.name}", _of_package(plan))


def memory_overlapping(parts: Parts, random: Random) -> Damage | None:
    """Two tensors that are needed at the same time lie at the same place."""
    found = []
    for plan in parts.plans:
        spans = {
            index: span
            for index, value in enumerate(plan.values)
            if isinstance(value.val, schema.Tensor) and value.val.allocation_info is not None
            for span in [_span(plan, index)]
        }
        for one, (start, end) in spans.items():
            for other, (begin, _) in spans.items():
                first, second = tensor(plan, one), tensor(plan, other)
                assert first is not None and second is not None
                a, b = first.allocation_info, second.allocation_info
                if (
                    one != other
                    and start < begin < end  # the other one is written while this one is needed
                    and a is not None
                    and b is not None
                    and a.memory_id == b.memory_id
                    and a.memory_offset != b.memory_offset
                    and _bytes(second) <= _bytes(first)
                ):
                    found.append((plan, one, other))
    if not (chosen := pick(random, found)):
        return None
    plan, one, other = chosen
    held, into = tensor(plan, other), tensor(plan, one)
    assert held is not None and into is not None
    held.allocation_info = copy.deepcopy(into.allocation_info)
    culprits = tuple(
        Culprit(plan.name, "operator|delegate|state", "", n) for n in users(plan, other)[:1]
    )
    return Damage(f"value {other} of {plan.name} lies on value {one}", culprits)


def _span(plan: schema.ExecutionPlan, index: int) -> tuple[int, int]:
    """The first and the last instruction that names a value; inputs are there before, outputs are
    needed after all of them."""
    used = [number for number, call in calls(plan) if index in reads(plan, call)]
    if not used:
        return (0, 0)
    start = -1 if index in plan.inputs else used[0]
    return start, len(calls(plan)) if index in plan.outputs else used[-1]


# The file


def truncated(files: Files, random: Random) -> tuple[Files, Damage]:
    """A part of the file is not there: its end, or all but its beginning."""
    share = random.choice([0.0, 0.02, 0.3, 0.7, 0.97])
    size = int(len(files.pte) * share)
    return Files(files.pte[:size], files.ptds), Damage(f"{size} bytes left", ())


def ptd_truncated(files: Files, random: Random) -> tuple[Files, Damage] | None:
    if not files.ptds:
        return None
    stem = random.choice(sorted(files.ptds))
    size = int(len(files.ptds[stem]) * random.choice([0.0, 0.3, 0.7, 0.97]))
    ptds = {**files.ptds, stem: files.ptds[stem][:size]}
    return Files(files.pte, ptds), Damage(f"{size} bytes of {stem}.ptd left", ())


def ptd_missing(files: Files, random: Random) -> tuple[Files, Damage] | None:
    if not files.ptds:
        return None
    stem = random.choice(sorted(files.ptds))
    ptds = {name: data for name, data in files.ptds.items() if name != stem}
    return Files(files.pte, ptds), Damage(f"{stem}.ptd", ())


OF_FILES: dict[str, Callable[[Files, Random], tuple[Files, Damage] | None]] = {
    "truncated": truncated,
    "ptd_truncated": ptd_truncated,
    "ptd_missing": ptd_missing,
}
