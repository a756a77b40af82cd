"""Finds the instruction that ExecuTorch's runtime computes otherwise than the interpreter.

The runtime of the wheel shows no intermediate values. So the method is cut short: the same
instructions up to one of them, with all values that what follows would read as outputs. The
shortest such beginning that diverges from the interpreter ends with the culprit. The bytes of
constants and of delegates stay what they are; nothing is lowered again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

from pipeline.devices.interface import PackageFiles
from pipeline.devices.interpreter.execute import read_value
from pipeline.devices.interpreter.load import get_instructions
from pipeline.devices.interpreter.slots import Slot, ValueList
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.validate.locate.case import FailureCase, plans, run_until
from pipeline.validate.locate.walk import CLOSER, Tolerance, find_scale
from pipeline.validate.metrics import OutputError


def bisect_runtime(case: FailureCase) -> tuple[int, OutputError, int] | None:
    """Bisect a method that was called once.

    Returns: the instruction that diverges, its error, and how many beginnings were run; None where
    nothing diverges.
    """
    plan, (_, inputs) = plans(case.data)[case.method], case.sequence[0]
    cuts = list(_cuts(plan))
    for share in CLOSER if cuts else ():
        tolerance = Tolerance(case.limits, find_scale(inputs), share)
        run = cache(partial(_run_beginning, case, plan, inputs, tolerance))
        if run(cuts[-1]) is None:
            continue
        first = bisect_left(cuts, True, hi=len(cuts) - 1, key=lambda cut: run(cut) is not None)
        error = run(cuts[first])
        assert error is not None
        return cuts[first], error, run.cache_info().misses
    return None


def _cuts(plan: schema.ExecutionPlan) -> Iterator[int]:
    """Yield the instructions behind which a plan may end: those that no jump leads over."""
    farthest = 0
    for index, instruction in enumerate(get_instructions(plan)):
        call = instruction.instr_args
        if isinstance(call, schema.JumpFalseCall):
            farthest = max(farthest, call.destination_instruction)
        if isinstance(call, (schema.KernelCall, schema.DelegateCall)) and farthest <= index + 1:
            yield index


def _results(plan: schema.ExecutionPlan, index: int) -> list[int]:
    """Return the planned tensors that instructions up to one write and that are read later."""
    calls = [getattr(i.instr_args, "args", None) or () for i in get_instructions(plan)]
    written = {v for args in calls[: index + 1] for v in _tensors(plan, args)}
    read = {v for args in calls[index + 1 :] for v in _tensors(plan, args)} | {*plan.outputs}
    return sorted((written & read) - {*plan.inputs})


def _tensors(plan: schema.ExecutionPlan, args: Sequence[int]) -> Iterator[int]:
    for index in args:
        value = plan.values[index].val if index >= 0 else None
        if isinstance(value, (schema.TensorList, schema.OptionalTensorList)):
            yield from _tensors(plan, value.items)
        elif isinstance(value, schema.Tensor) and value.data_buffer_idx == 0:
            yield from [index] if value.allocation_info is not None else []


def _run_beginning(
    case: FailureCase,
    plan: schema.ExecutionPlan,
    inputs: Sequence[Any],
    tolerance: Tolerance,
    index: int,
) -> OutputError | None:
    """Run the instructions up to one on both devices; return the error of a value that diverges."""
    data, files = case.data, case.evidence.files
    loaded = run_until(data, case.sequence, index)
    assert loaded is not None  # no jump leads over it
    # A value that was not written in this run has no sizes of its own.
    places = [p for p in _results(plan, index) if isinstance(loaded.values[p], (Slot, ValueList))]
    if not places:
        return None
    expected = [read_value(loaded, place) for place in places]
    chain = replace(plan.chains[0], instructions=plan.chains[0].instructions[: index + 1])
    cut = replace(plan, outputs=places, chains=[chain])
    # The others stay: every payload of a file must be somebody's.
    every = [cut if each is plan else each for each in data.file.program.execution_plan]
    program = replace(data.file.program, execution_plan=every)
    part = PTEFile(program, data.file.mutable_data, data.file.named_data)
    content = bytes(serialize_pte_binary(part, extract_delegate_segments=True))
    session = Session(PackageFiles(files.name, content, tuple(files.data())), EXECUTORCH)
    return tolerance.first_error(session.run(plan.name, inputs), expected)
