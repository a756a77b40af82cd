"""Damages to the structure of a package: outputs, inputs, methods, state, memory, the file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import permutations
from math import prod
from random import Random
from typing import Any

from executorch.exir import schema

from .parts import (
    Culprit,
    Damage,
    Parts,
    calls,
    damage,
    is_like,
    kernels,
    pairs_alike,
    reads,
    skip_call,
    swap,
    tensor,
    users,
)
from .samples import Files

_SHARED = 2  # the arena that methods share
_SIZES = {0: 1, 1: 1, 3: 4, 4: 8, 6: 4, 7: 8, 11: 1}
_COMPUTED = "operator|delegate"  # culprits of a wrong value


def _of_package(plan: schema.ExecutionPlan) -> tuple[Culprit, ...]:
    return (Culprit(plan.name, ""),)


def _is_planned(value: Any) -> bool:
    return isinstance(value, schema.Tensor) and value.allocation_info is not None


# Inputs and outputs


@damage(lambda parts: [(plan,) for plan in parts.plans])
def output_dropped(parts: Parts, random: Random, plan: schema.ExecutionPlan) -> Damage:
    place = random.randrange(len(plan.outputs))
    del plan.outputs[place]
    return Damage(f"output {place} of {plan.name}", _of_package(plan))


def _output_pairs(parts: Parts) -> list[tuple[Any, ...]]:
    """Return pairs of outputs of equal shape, whose order only values reveal, or any pairs."""
    alike = [pair for plan in parts.plans for pair in pairs_alike(plan, plan.outputs)]
    return alike or [p for plan in parts.plans for p in pairs_alike(plan, plan.outputs, False)]


@damage(_output_pairs)
def outputs_reordered(parts: Parts, random: Random, *site: Any) -> Damage:
    plan, one, other = site
    swap(plan.outputs, one, other)
    return Damage(f"outputs {one} and {other} of {plan.name}", _of_package(plan))


def _other_values(parts: Parts) -> Iterator[tuple[schema.ExecutionPlan, int, int]]:
    for plan in parts.plans:
        for place, index in enumerate(plan.outputs):
            output = tensor(plan, index)
            for other in range(len(plan.values)):
                held = tensor(plan, other)
                if output is None or held is None or other == index or not is_like(held, output):
                    continue
                if _is_planned(held) and (other in plan.inputs or users(plan, other)):
                    yield plan, place, other


def _return_value(parts: Parts, random: Random, *site: Any) -> Damage:
    plan, place, other = site
    plan.outputs[place] = other
    what = f"output {place} of {plan.name} is value {other}"
    return Damage(what, (Culprit(plan.name, _COMPUTED),))


damage(lambda parts: [site for site in _other_values(parts) if site[2] not in site[0].outputs],
       "input_returned")(_return_value)  # fmt: skip


@damage(lambda parts: [site for site in _other_values(parts) if site[2] in site[0].outputs])
def output_aliased(parts: Parts, random: Random, *site: Any) -> Damage:
    """Make an output return another one of the same shape."""
    return Damage(_return_value(parts, random, *site).what, _of_package(site[0]))


@damage(lambda parts: [pair for plan in parts.plans for pair in pairs_alike(plan, plan.inputs)])
def inputs_swapped(parts: Parts, random: Random, *site: Any) -> Damage:
    """Swap two inputs of the same shape."""
    plan, one, other = site
    swap(plan.inputs, one, other)
    what = f"inputs {one} and {other} of {plan.name}"
    return Damage(what, (Culprit(plan.name, _COMPUTED),))


def _declared(parts: Parts) -> list[tuple[schema.ExecutionPlan, int, schema.Tensor]]:
    return [
        (plan, index, held)
        for plan in parts.plans
        for index in dict.fromkeys([*plan.inputs, *plan.outputs])
        if (held := tensor(plan, index)) is not None
    ]


@damage(_declared)
def declared_dtype(parts: Parts, random: Random, *site: Any) -> Damage:
    plan, index, held = site
    held.scalar_type = type(held.scalar_type)(3 if int(held.scalar_type) == 6 else 6)
    return Damage(f"dtype of value {index} of {plan.name}", _of_package(plan))


@damage(
    lambda parts: [site for site in _declared(parts) if any(size > 1 for size in site[2].sizes)]
)
def declared_size(parts: Parts, random: Random, *site: Any) -> Damage:
    """Reduce a declared size by one, so that the memory still suffices."""
    plan, index, held = site
    dimension = random.choice([n for n, size in enumerate(held.sizes) if size > 1])
    held.sizes[dimension] -= 1
    what = f"size {dimension} of value {index} of {plan.name}"
    return Damage(what, (Culprit(plan.name, _COMPUTED),))


def _layouts(parts: Parts) -> Iterator[tuple[schema.ExecutionPlan, int, schema.Tensor, list[int]]]:
    """Yield tensors whose dimension order matters, with the positions of those dimensions."""
    for plan in parts.plans:
        for index in range(len(plan.values)):
            held = tensor(plan, index)
            if held is None or not (index in plan.inputs or users(plan, index)):
                continue
            wide = [place for place, d in enumerate(held.dim_order) if held.sizes[d] > 1]
            if len(wide) > 1:
                yield plan, index, held, wide


def _reorder_dimensions(parts: Parts, random: Random, *site: Any) -> Damage:
    plan, index, held, wide = site
    order = list(held.dim_order)
    swap(order, *random.sample(wide, 2))
    what = f"value {index} of {plan.name}: dimensions in the order {order}, not {held.dim_order}"
    held.dim_order = order
    return Damage(what, (Culprit(plan.name, _COMPUTED),))


# Reads a declared input, or writes and reads an intermediate value, in another order.
for name, is_input in (("dim_order", True), ("dim_order_inside", False)):
    damage(
        lambda parts, is_input=is_input: [
            site for site in _layouts(parts) if (site[1] in site[0].inputs) == is_input
        ],
        name,
    )(_reorder_dimensions)


# Methods


def _all_plans(parts: Parts) -> list[tuple[schema.ExecutionPlan]]:
    return [(plan,) for plan in parts.program.execution_plan]


@damage(lambda parts: [(one, other) for one, other in permutations(parts.plans, 2)])
def methods_swapped(parts: Parts, random: Random, *plans: schema.ExecutionPlan) -> Damage:
    one, other = plans
    one.name, other.name = other.name, one.name
    culprits = [Culprit(plan.name, _COMPUTED) for plan in plans]
    return Damage(f"{one.name} and {other.name}", tuple(culprits))


@damage(lambda parts: _all_plans(parts) if len(_all_plans(parts)) > 1 else ())
def method_missing(parts: Parts, random: Random, plan: schema.ExecutionPlan) -> Damage:
    parts.program.execution_plan.remove(plan)
    return Damage(plan.name, _of_package(plan))


@damage(_all_plans)
def method_extra(parts: Parts, random: Random, plan: schema.ExecutionPlan) -> Damage:
    extra = copy.deepcopy(plan)
    extra.name = f"{plan.name}_more"
    parts.program.execution_plan.append(extra)
    return Damage(extra.name, _of_package(extra))


@damage(lambda p: [site for site in _all_plans(p) if not site[0].chains[0].instructions])
def constant_method(parts: Parts, random: Random, plan: schema.ExecutionPlan) -> Damage:
    held: Any = plan.values[random.choice(plan.outputs)].val
    if isinstance(held, schema.Bool):
        held.bool_val = not held.bool_val
    elif isinstance(held, schema.Int):
        held.int_val += 1
    else:
        held.double_val = float(held.double_val) * 1.001
    return Damage(f"{plan.name} gives {held}", _of_package(plan))


# State


def _holds(plan: schema.ExecutionPlan, index: int) -> list[schema.Tensor]:
    """Return a method's tensors that are initialized from this buffer."""
    return [
        held
        for place in range(len(plan.values))
        if (held := tensor(plan, place)) is not None
        and _is_planned(held)
        and held.data_buffer_idx == index
    ]


@damage(lambda parts: [(index,) for index in range(1, len(parts.mutable or []))])
def initial_state_lost(parts: Parts, random: Random, index: int) -> Damage:
    holders = [plan for plan in parts.plans if _holds(plan, index)]
    for plan in holders:
        for held in _holds(plan, index):
            held.data_buffer_idx = 0
    culprits = tuple(Culprit(plan.name, "state|operator|delegate") for plan in holders)
    return Damage("a buffer begins with zeros", culprits)


@damage(lambda parts: kernels(parts, "aten::copy_"))
def write_back_removed(parts: Parts, random: Random, *kernel: Any) -> Damage:
    """Remove the copy at the end of a call into a buffer that the next call reads."""
    plan, number, call, _ = kernel
    skip_call(plan, number, call.args[0])
    return Damage(f"instruction {number} of {plan.name}", (Culprit(plan.name, "state"),))


def _sharing(parts: Parts) -> list[schema.ExecutionPlan]:
    return [plan for plan in parts.plans if len(plan.non_const_buffer_sizes) > _SHARED]


@damage(lambda parts: [(plan,) for plan in _sharing(parts)] if len(_sharing(parts)) > 1 else ())
def shared_state_split(parts: Parts, random: Random, plan: schema.ExecutionPlan) -> Damage:
    """Give one of several methods a copy of their shared state."""
    culprits = tuple(Culprit(other.name, "state|operator") for other in _sharing(parts))
    own = len(plan.non_const_buffer_sizes)
    plan.non_const_buffer_sizes.append(plan.non_const_buffer_sizes[_SHARED])
    for value in plan.values:
        place = value.val.allocation_info if isinstance(value.val, schema.Tensor) else None
        if place is not None and place.memory_id == _SHARED:
            place.memory_id = own
    return Damage(f"{plan.name} has memory {own} for its state", culprits)


# Memory


def _bytes(held: schema.Tensor) -> int:
    return prod(held.sizes) * _SIZES.get(int(held.scalar_type), 8)


def _neighbours(parts: Parts) -> Iterator[tuple[schema.ExecutionPlan, int, int]]:
    """Yield values, each with another one written during its lifetime that fits in its place."""
    for plan in parts.plans:
        planned = [n for n, value in enumerate(plan.values) if _is_planned(value.val)]
        spans = {index: _span(plan, index) for index in planned}
        for one, other in permutations(planned, 2):
            first: Any = plan.values[one].val
            second: Any = plan.values[other].val
            places = first.allocation_info, second.allocation_info
            if (
                spans[one][0] < spans[other][0] < spans[one][1]
                and places[0].memory_id == places[1].memory_id
                and places[0].memory_offset != places[1].memory_offset
                and _bytes(second) <= _bytes(first)
            ):
                yield plan, one, other


@damage(_neighbours)
def memory_overlapping(parts: Parts, random: Random, *site: Any) -> Damage:
    """Place two tensors with overlapping lifetimes at the same address."""
    plan, one, other = site
    place = plan.values[one].val.allocation_info
    plan.values[other].val.allocation_info = copy.deepcopy(place)
    culprits = tuple(
        Culprit(plan.name, "operator|delegate|state", "", n) for n in users(plan, other)[:1]
    )
    return Damage(f"value {other} of {plan.name} lies on value {one}", culprits)


def _span(plan: schema.ExecutionPlan, index: int) -> tuple[int, int]:
    """Return the first and the last instruction that uses a value.

    Inputs exist before the first instruction; outputs are needed after the last one.
    """
    used = [number for number, call in calls(plan) if index in reads(plan, call)]
    if not used:
        return (0, 0)
    start = -1 if index in plan.inputs else used[0]
    return start, len(calls(plan)) if index in plan.outputs else used[-1]


# The file


def truncated(files: Files, random: Random) -> tuple[Files, Damage]:
    """Remove part of the file: its end, or everything but its beginning."""
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
    return (Files(files.pte), Damage("no .ptd", ())) if files.ptds else None


OF_FILES: dict[str, Callable[[Files, Random], tuple[Files, Damage] | None]] = {
    "truncated": truncated,
    "ptd_truncated": ptd_truncated,
    "ptd_missing": ptd_missing,
}
