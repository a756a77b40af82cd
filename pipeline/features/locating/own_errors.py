"""Runs the interpreter in step with a device's recording, and finds what diverges by itself.

Each instruction is computed here from the values that the device had, and later instructions
continue with the device's results. The error of an instruction is thus its own, whatever came
before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from executorch.exir import schema

from pipeline.features.locating.case import FailureCase, load_methods
from pipeline.features.locating.interpreter.execute import (
    read_value,
    result_indices,
    steps,
    store_value,
)
from pipeline.features.locating.interpreter.load import (
    InterpretedMethod,
    get_instructions,
)
from pipeline.features.locating.walk import CLOSER, Tolerance, comparable
from pipeline.program.plan_values import used_values
from pipeline.store.errors import PipelineError
from pipeline.validate.metrics import OutputError, compare


class Executed(Protocol):
    """An instruction that ran on a device: its number and the last of its arguments' values."""

    index: int
    values: Sequence[Any]


class OwnError:
    """The error of one instruction: its results on the device and here differ for equal inputs.

    Attributes:
        index: the number of the instruction.
        result: which of its results diverges.
        actual: the device's value.
        tolerance: the tolerance that the error exceeds.
        call: the number of the call; `visit` counts earlier runs of the instruction in that call.
        inputs: the inputs of a delegate's call, on the device.
    """

    def __init__(
        self,
        index: int,
        result: int,
        actual: torch.Tensor,
        error: OutputError,
        tolerance: Tolerance,
    ) -> None:
        self.index = index
        self.result = result
        self.actual = actual
        self.error = error
        self.tolerance = tolerance
        self.call = 0
        self.visit = 0
        self.inputs: list[Any] = []


def find_own_error(
    case: FailureCase,
    executions: Sequence[Sequence[Executed]],
    scale: float,
    unrecorded: list[int],
) -> tuple[OwnError | None, int]:
    """Return the first instruction that diverges by itself, and how many others do.

    Values are checked against shares of the limits, the widest first.

    Args:
        scale: the greatest magnitude of the outputs.
        unrecorded: a list that receives the instruction of each value the device did not record.
    """
    tolerances = [
        Tolerance(case.limits, scale, share, rounds_otherwise=True) for share in CLOSER
    ]
    first: dict[float, OwnError] = {}
    counts: Counter[float] = Counter()
    for own_error in _iter_own_errors(case, executions, tolerances, unrecorded):
        for tolerance in tolerances[tolerances.index(own_error.tolerance) :]:
            first.setdefault(tolerance.share, own_error)
            counts[tolerance.share] += 1
    for share in CLOSER:
        if share in first:
            return first[share], counts[share] - 1
    return None, 0


def _iter_own_errors(
    case: FailureCase,
    executions: Sequence[Sequence[Executed]],
    tolerances: Sequence[Tolerance],
    unrecorded: list[int],
) -> Iterator[OwnError]:
    """Run the interpreter in step with the device's recording; yield each divergence.

    Args:
        unrecorded: a list that receives the instruction of each value the device did not record.

    Raises:
        PipelineError: the interpreter executes another instruction than the device did.
    """
    loaded = load_methods(case.data, case.methods)
    for number, (name, inputs) in enumerate(case.sequence):
        method = loaded[name]
        used_by = _count_users(method.plan)
        recorded = iter(executions[number] if number < len(executions) else ())
        visits: Counter[int] = Counter()
        for index in steps(method, inputs):
            case.budget.check()
            call = get_instructions(method.plan)[index].instr_args
            if not isinstance(call, (schema.KernelCall, schema.DelegateCall)):
                continue
            executed = next(recorded, None)
            if executed is None or executed.index != index:
                raise PipelineError(f"it did not execute instruction {index}")
            own_errors = _take_results(method, executed, used_by, tolerances)
            for own_error in own_errors:
                own_error.call, own_error.visit = number, visits[index]
                yield own_error
            visits[index] += 1
            unrecorded += [index] * sum(value is None for value in executed.values)


def _take_results(
    method: InterpretedMethod,
    executed: Executed,
    used_by: Mapping[int, int],
    tolerances: Sequence[Tolerance],
) -> list[OwnError]:
    """Replace the results of the last instruction with the device's.

    Return the results that diverge, leaving out those that nothing reads.
    """
    own_errors = []
    for result, value_index, actual in _pair_results(method, executed):
        expected = read_value(method, value_index)
        if not comparable(actual, expected):
            continue
        actual = actual.reshape(expected.shape)
        tolerance = None
        if used_by[value_index] > 1:
            tolerance = _find_exceeded(actual, expected, tolerances)
        if tolerance is not None:
            error = compare(actual, expected)
            own_error = OwnError(executed.index, result, actual, error, tolerance)
            own_errors.append(own_error)
        store_value(method.values, value_index, actual)
    if own_errors:
        inputs = _read_arguments(method, executed.index)
        for own_error in own_errors:
            own_error.inputs = inputs
    return own_errors


def _count_users(plan: schema.ExecutionPlan) -> Counter[int]:
    """Return, by value, how many instructions and outputs use it."""
    users: Counter[int] = Counter(plan.outputs)
    for instruction in plan.chains[0].instructions:
        users.update(set(used_values(plan, instruction.instr_args)))
    return users


def _pair_results(
    method: InterpretedMethod, executed: Executed
) -> list[tuple[int, int, Any]]:
    """Return the number, the index and the device's value of each result of an instruction."""
    indices = result_indices(method, executed.index)
    values: list[Any] = []
    for value in executed.values:
        values += value if isinstance(value, list) else [value]
    if len(values) < len(indices):  # the kernel recorded only some results, or none
        return []
    values = values[len(values) - len(indices) :]
    return list(zip(range(len(indices)), indices, values, strict=True))


def _read_arguments(method: InterpretedMethod, index: int) -> list[Any]:
    """Return the inputs of a delegate's call; an empty list for a kernel's."""
    call = get_instructions(method.plan)[index].instr_args
    if not isinstance(call, schema.DelegateCall):
        return []
    count = len(call.args) - method.results[index]
    return [read_value(method, value_index) for value_index in call.args[:count]]


def _find_exceeded(
    actual: torch.Tensor, expected: torch.Tensor, tolerances: Sequence[Tolerance]
) -> Tolerance | None:
    """Return the widest tolerance that a value exceeds, or None if it exceeds none."""
    if torch.equal(actual, expected):
        return None
    error = compare(actual, expected)
    for tolerance in tolerances:
        if tolerance.diverges(error, actual, expected):
            return tolerance
    return None
