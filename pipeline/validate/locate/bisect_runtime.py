"""Finds the instruction that ExecuTorch's runtime computes otherwise than the interpreter.

The runtime of the wheel tells nothing of what it computes on the way. So the method is cut short:
the same instructions up to one of them, with all values that what follows would read as outputs.
The shortest such beginning that departs from the interpreter ends with the culprit. The bytes of
kernels' constants and of delegates stay what they are; nothing is lowered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

from pipeline.devices.interface import PackageFiles
from pipeline.devices.interpreter.execute import steps, value_of
from pipeline.devices.interpreter.load import Data, instructions_of, load
from pipeline.devices.interpreter.slots import Places, Slot
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.validate.locate.plan_diff import plans
from pipeline.validate.locate.walk import CLOSER, Compared, Held, Tolerance, scale_of
from pipeline.validate.metrics import OutputError, compare

MOST_PROBES = 24


@dataclass(frozen=True)
class Probed:
    """`index` is the instruction, None where none was found; `note` says why, or how."""

    index: int | None
    note: str
    error: OutputError | None = None


def probe(
    data: Data, files: PackageFiles, method: str, inputs: Sequence[Any], limits: Held
) -> Probed:
    """Of the first call of a method, on which the two of them depart."""
    plan = plans(data)[method]
    cuts = list(_cuts(plan))
    if not cuts:
        return Probed(None, "its instructions can't be cut")
    scale = scale_of(inputs)
    for share in CLOSER:
        tolerance = Tolerance(limits, scale, share)
        whole = _departure(data, files, plan, cuts[-1], inputs, tolerance)
        if whole is not None:
            break
    else:
        return Probed(None, "run by itself, its beginning is computed alike")
    found: dict[int, OutputError | None] = {len(cuts) - 1: whole}
    low, high = 0, len(cuts) - 1
    while low < high and len(found) < MOST_PROBES:
        middle = (low + high) // 2
        found[middle] = _departure(data, files, plan, cuts[middle], inputs, tolerance)
        if found[middle] is None:
            low = middle + 1
        else:
            high = middle
    return Probed(
        cuts[high], f"found in {len(found)} runs of beginnings of the method", found[high]
    )


def _cuts(plan: schema.ExecutionPlan) -> Iterator[int]:
    """The instructions behind which a plan may end: no jump leads over them, and something that
    they leave is read."""
    farthest = 0
    for index, instruction in enumerate(instructions_of(plan)):
        call = instruction.instr_args
        if isinstance(call, schema.JumpFalseCall):
            farthest = max(farthest, call.destination_instruction)
        if isinstance(call, (schema.KernelCall, schema.DelegateCall)) and farthest <= index + 1:
            yield index


def _left(plan: schema.ExecutionPlan, index: int) -> list[int]:
    """The tensors that the instructions up to one have written and later ones, or the caller,
    read."""
    calls = [getattr(i.instr_args, "args", None) or () for i in instructions_of(plan)]
    written = {v for args in calls[: index + 1] for v in _tensors(plan, args)}
    read = {v for args in calls[index + 1 :] for v in _tensors(plan, args)} | {*plan.outputs}
    held = {*plan.inputs}
    return sorted(v for v in written & read if v not in held and _is_planned(plan, v))


def _tensors(plan: schema.ExecutionPlan, args: Sequence[int]) -> Iterator[int]:
    for index in args:
        value = plan.values[index].val if index >= 0 else None
        if isinstance(value, schema.Tensor):
            yield index
        elif isinstance(value, (schema.TensorList, schema.OptionalTensorList)):
            yield from (i for i in value.items if i >= 0)


def _is_planned(plan: schema.ExecutionPlan, index: int) -> bool:
    value = plan.values[index].val
    return isinstance(value, schema.Tensor) and (
        value.data_buffer_idx == 0 and value.allocation_info is not None
    )


def _departure(
    data: Data,
    files: PackageFiles,
    plan: schema.ExecutionPlan,
    index: int,
    inputs: Sequence[Any],
    tolerance: Tolerance,
) -> OutputError | None:
    places = _left(plan, index)
    if not places:
        return None
    loaded = load(plan, data)
    for number in steps(loaded, inputs):
        if number == index:
            break
    # What was not written in this run has no sizes of its own.
    places = [p for p in places if isinstance(loaded.values[p], (Slot, Places))]
    expected = [value_of(loaded, place) for place in places]
    chain = replace(plan.chains[0], instructions=plan.chains[0].instructions[: index + 1])
    cut = replace(plan, outputs=places, chains=[chain])
    # The others stay: every payload of a file must be somebody's.
    every = [cut if each is plan else each for each in data.file.program.execution_plan]
    program = replace(data.file.program, execution_plan=every)
    part = PTEFile(program, data.file.mutable_data, data.file.named_data)
    content = bytes(serialize_pte_binary(part, extract_delegate_segments=True))
    session = Session(PackageFiles(files.name, content, tuple(files.data())), EXECUTORCH)
    for actual, wanted in zip(session.run(plan.name, inputs), expected, strict=True):
        error = compare(actual, wanted)
        if tolerance.departs(Compared(index, 0, 0, 0, error, actual, wanted)):
            return error
    return None
