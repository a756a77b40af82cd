"""Finds the instruction that ExecuTorch's runtime computes differently from the interpreter.

The wheel's runtime doesn't reveal intermediate values. So the method is cut short: it keeps the
instructions up to one of them, and outputs all values that later instructions would read. The
shortest beginning that diverges from the interpreter ends with the culprit. The bytes of constants
and delegates stay as they are; nothing is lowered again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.features.locating.case import FailureCase, describe_error, run_until
from pipeline.features.locating.interpreter.execute import read_value
from pipeline.features.locating.interpreter.load import get_instructions
from pipeline.features.locating.interpreter.slots import Slot, ValueList
from pipeline.features.locating.lost_cond import find_losses, name_conds
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.features.locating.walk import CLOSER, Tolerance, find_scale
from pipeline.program.plan_values import used_values
from pipeline.store.reasons import reason
from pipeline.store.remedies import add_remedy
from pipeline.validate.metrics import OutputError


def locate_in_runtime(case: FailureCase) -> Iterator[Culprit]:
    """Look for an instruction that ExecuTorch's runtime alone computes differently."""
    lowered = "the source" if case.floor is None else "the quantized program"
    finding = f"in these calls, the interpreter computes from its bytes what {lowered} computes"
    if Session(case.evidence.files).choose_device(case.method) != EXECUTORCH:
        case.note(finding)
        return
    if refusal := _run_until_refused(case):
        spot = case.find(refusal.instruction or 0)
        why = refusal.reason.removeprefix("fails: ")
        sentence = f"ExecuTorch's runtime refuses {case.describe(spot)}: {why}"
        yield case.culprit(spot, spot.kind, add_remedy(sentence))
        return
    if losses := find_losses(case):  # not in the interpreter, which copies
        yield from name_conds(case, losses)
        return
    if len(case.sequence) > 1:
        case.note(
            f"{finding}; where ExecuTorch's runtime diverges in a sequence is not searched"
        )
        return
    try:
        result = _bisect(case)
    except Exception as refused:  # raised by the serializer or the runtime
        case.note(
            f"{finding}; ExecuTorch's runtime could not be examined ({reason(refused)})"
        )
        return
    if result is None:
        case.note(f"{finding}, and so does ExecuTorch's runtime on its own")
        return
    index, error, runs = result
    spot = case.find(index)
    sentence = (
        f"first divergence: {case.describe(spot)}, in ExecuTorch's runtime alone: "
        f"{describe_error(error)} from the interpreter's result for the same bytes; found in "
        f"{runs} runs of prefixes of the method"
    )
    yield case.culprit(spot, spot.kind, sentence, error)


def _run_until_refused(case: FailureCase) -> DeviceError | None:
    """Make the calls of a case in ExecuTorch's runtime.

    Return the error that names the refused instruction, or None if no error names one.
    """
    session = Session(case.evidence.files, EXECUTORCH)
    try:
        for method, inputs in case.sequence:
            case.budget.check()
            session.run(method, inputs)
    except DeviceError as error:
        return error if error.instruction is not None else None
    return None


def _bisect(case: FailureCase) -> tuple[int, OutputError, int] | None:
    """Return the diverging instruction, its error, and the number of beginnings that ran."""
    plan = case.data.plans[case.method]
    (_, inputs) = case.sequence[0]
    cuts = list(_cuts(plan))
    if not cuts:
        raise ValueError("it has no instruction behind which it can be cut")
    for share in CLOSER:
        tolerance = Tolerance(case.limits, find_scale(inputs), share)
        run = cache(partial(_run_beginning, case, plan, inputs, tolerance))
        if run(cuts[-1]) is None:
            continue
        first = bisect_left(
            cuts, True, hi=len(cuts) - 1, key=lambda cut: run(cut) is not None
        )
        error = run(cuts[first])
        assert error is not None
        return cuts[first], error, run.cache_info().misses
    return None


def _cuts(plan: schema.ExecutionPlan) -> Iterator[int]:
    """Yield the instructions after which a plan can end: those that no jump skips."""
    farthest = 0
    for index, instruction in enumerate(get_instructions(plan)):
        call = instruction.instr_args
        if isinstance(call, schema.JumpFalseCall):
            farthest = max(farthest, call.destination_instruction)
        if (
            isinstance(call, (schema.KernelCall, schema.DelegateCall))
            and farthest <= index + 1
        ):
            yield index


def _results(plan: schema.ExecutionPlan, index: int) -> Iterator[int]:
    """Yield the planned tensors that instructions up to `index` write and later ones read."""
    used = [
        used_values(plan, instruction.instr_args)
        for instruction in get_instructions(plan)
    ]
    written = set().union(*used[: index + 1]) - {*plan.inputs}
    for place in sorted(written & set(plan.outputs).union(*used[index + 1 :])):
        value = plan.values[place].val
        planned = isinstance(value, schema.Tensor) and value.allocation_info is not None
        if planned and value.data_buffer_idx == 0:
            yield place


def _run_beginning(
    case: FailureCase,
    plan: schema.ExecutionPlan,
    inputs: Sequence[Any],
    tolerance: Tolerance,
    index: int,
) -> OutputError | None:
    """Run the instructions up to `index` on both devices; return the error of a diverging value."""
    data = case.data
    files = case.evidence.files
    loaded = run_until(data, case.sequence, index, budget=case.budget)
    assert loaded is not None  # no jump skips it
    # A value that this run didn't write has no sizes of its own.
    places = [
        p
        for p in _results(plan, index)
        if isinstance(loaded.values[p], (Slot, ValueList))
    ]
    if not places:
        return None
    expected = [read_value(loaded, place) for place in places]
    chain = replace(
        plan.chains[0], instructions=plan.chains[0].instructions[: index + 1]
    )
    cut = replace(plan, outputs=places, chains=[chain])
    # The other plans stay, because every payload in a file needs an owner.
    plans = [
        cut if original is plan else original
        for original in data.file.program.execution_plan
    ]
    program = replace(data.file.program, execution_plan=plans)
    part = PTEFile(program, data.file.mutable_data, data.file.named_data)
    content = bytes(serialize_pte_binary(part, extract_delegate_segments=True))
    session = Session(
        PackageFiles(files.name, content, tuple(files.data())), EXECUTORCH
    )
    return tolerance.first_error(session.run(plan.name, inputs), expected)
