"""Locates where a device departs from this machine, which runs the same bytes.

The device records what its instructions gave. The interpreter runs in step with that: it computes
each instruction from the values that the device had, and goes on with what the device gave. So an
instruction is compared by its own error, whatever came before it. A delegate that departs is cut
into parts, each of which runs on the device and here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from executorch.exir import schema

from pipeline.devices.interface import PackageFiles
from pipeline.features.locating.bisect_delegate import (
    MOST_SECONDS,
    bisect_delegate,
    find_fused_operator,
)
from pipeline.features.locating.case import (
    Evidence,
    FailureCase,
    MethodCall,
    Spot,
    describe_error,
    load_methods,
    run_until,
)
from pipeline.features.locating.divergence import lower_delegate
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
from pipeline.features.locating.locate import hold_to_derived
from pipeline.features.locating.measuring import collect_evidence
from pipeline.features.locating.walk import CLOSER, Tolerance, comparable, find_scale
from pipeline.program.graphs import NodePlaces
from pipeline.program.plan_values import used_values
from pipeline.report.method_records import CulpritRecord as Culprit
from pipeline.run.prove.measuring import Measurement
from pipeline.store.errors import PipelineError, plural
from pipeline.store.reasons import reason
from pipeline.validate.budget import Budget, OutOfTimeError
from pipeline.validate.metrics import OutputError, compare

_log = logging.getLogger(__name__)


class Executed(Protocol):
    """An instruction that ran on a device: its number, and the last of its arguments' values."""

    index: int
    values: Sequence[Any]


class Failure(Protocol):
    """Calls that a device gets wrong, as `features.native.device_failure.DeviceFailure`."""

    device: str
    method: str
    calls: Sequence[MethodCall]

    def record(
        self, budget: Budget
    ) -> tuple[list[Any], Sequence[Sequence[Executed]]] | None: ...
    def run_package(
        self, files: PackageFiles, method: str, inputs: Sequence[Any]
    ) -> Sequence[Any]: ...


class OwnError:
    """The error of one instruction: its results on the device beside those here, on equal inputs.

    Attributes:
        index: the number of the instruction.
        result: which of its results.
        actual: the device's value.
        tolerance: what the error exceeds.
        call: the number of the call, and `visit` how often the instruction had run in it before.
        inputs: of a delegate's call, on the device.
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


def locate_on_device(
    measurement: Measurement, failure: Failure, budget: Budget
) -> tuple[list[Culprit], list[str]]:
    """Return the instruction at which a device departs first, and lines on what was not found out.

    Args:
        budget: the time for it.
    """
    evidence = hold_to_derived(
        collect_evidence(measurement.subject, measurement.files, budget),
        measurement.validation,
    )
    return locate_departure(evidence, failure, budget)


def locate_departure(
    evidence: Evidence, failure: Failure, budget: Budget
) -> tuple[list[Culprit], list[str]]:
    """Return what `locate_on_device` returns, from what is known of the package.

    Args:
        evidence: has the limits that the method is held to.
    """
    case = FailureCase(evidence, failure.method, (), budget, failure.calls)
    prefix = f"on {failure.device}: "
    culprits: list[Culprit] = []
    try:
        budget.check()
        with torch.no_grad():
            culprits += _locate(case, failure)
    except OutOfTimeError as error:
        case.note(f"{prefix}{error} before it was found where it departs")
    except Exception as error:  # it must not hide the failure that is looked into
        _log.debug("locating %s on %s", failure.method, failure.device, exc_info=True)
        sentence = f"{type(error).__name__}: {reason(error)}"
        case.note(f"{prefix}where it departs could not be found: {sentence}")
    return culprits, case.notes


def _locate(case: FailureCase, failure: Failure) -> Iterator[Culprit]:
    recorded = failure.record(case.budget)
    if recorded is None:
        case.note(f"on {failure.device}: called again, it gives what it must give")
        return
    outputs, executions = recorded
    expected = _run_here(case)
    unrecorded: list[int] = []
    scale = find_scale(expected)
    own_error, more = _find_own_error(case, executions, scale, unrecorded)
    if unrecorded:
        values = plural(len(unrecorded), "value")
        case.note(f"on {failure.device}: no room was left to record {values}")
    if own_error is None:
        case.note(
            f"on {failure.device}: each instruction gives what it gives here on the same inputs, "
            "as far as its values were recorded"
        )
        return
    share = _find_share(case, own_error, outputs, expected)
    yield _describe(case, failure, own_error, more, share)


def _find_own_error(
    case: FailureCase,
    executions: Sequence[Sequence[Executed]],
    scale: float,
    unrecorded: list[int],
) -> tuple[OwnError | None, int]:
    """Return the first instruction that departs by itself, and how many more do.

    Values are held to shares of the limits, the widest first.

    Args:
        scale: the greatest magnitude of the outputs.
        unrecorded: takes the instruction of each value that the device did not record.
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
    """Run the interpreter in step with what the device did; yield what departs.

    Args:
        unrecorded: takes the instruction of each value that the device did not record.

    Raises PipelineError where both execute other instructions.
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
    """Replace the results of the instruction that just ran by the device's; return those that
    depart, if anything reads them."""
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
    """Count by value the instructions that have it as an argument, and the outputs."""
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
    if len(values) < len(indices):  # a kernel that records nothing, or not all
        return []
    values = values[len(values) - len(indices) :]
    return list(zip(range(len(indices)), indices, values, strict=True))


def _read_arguments(method: InterpretedMethod, index: int) -> list[Any]:
    """Return what a delegate's call is given; nothing for a kernel's."""
    call = get_instructions(method.plan)[index].instr_args
    if not isinstance(call, schema.DelegateCall):
        return []
    count = len(call.args) - method.results[index]
    return [read_value(method, value_index) for value_index in call.args[:count]]


def _find_exceeded(
    actual: torch.Tensor, expected: torch.Tensor, tolerances: Sequence[Tolerance]
) -> Tolerance | None:
    """Return the widest tolerance that a value exceeds; None where it keeps to all."""
    if torch.equal(actual, expected):
        return None
    error = compare(actual, expected)
    for tolerance in tolerances:
        if tolerance.departs(error, actual, expected):
            return tolerance
    return None


def _run_here(case: FailureCase, own_error: OwnError | None = None) -> list[Any]:
    """Make the calls in the interpreter; return the outputs of the last.

    Args:
        own_error: a result that is taken from the device.
    """
    if own_error is None:
        loaded = run_until(case.data, case.sequence, budget=case.budget)
        assert loaded is not None
        return [read_value(loaded, index) for index in loaded.plan.outputs]
    methods = load_methods(case.data, case.methods)
    for call, (name, inputs) in enumerate(case.sequence):
        method = methods[name]
        visit = 0
        for index in steps(method, inputs):
            case.budget.check()
            if call != own_error.call or index != own_error.index:
                continue
            if visit == own_error.visit:
                place = result_indices(method, index)[own_error.result]
                store_value(method.values, place, own_error.actual)
            visit += 1
    last = methods[case.method]
    return [read_value(last, index) for index in last.plan.outputs]


def _find_share(
    case: FailureCase,
    own_error: OwnError,
    outputs: Sequence[Any],
    expected: Sequence[Any],
) -> float | None:
    """Return the share of the outputs' error, 0 to 1, that is there when this result alone is the
    device's; None where it can't be computed."""
    try:
        mixed = _run_here(case, own_error)
    except OutOfTimeError:
        return None
    total = _add_errors(outputs, expected)
    remaining = _add_errors(outputs, mixed)
    if not 0 < total < float("inf") or not remaining < float("inf"):
        return None
    return max(0.0, 1 - remaining / total)


def _add_errors(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    total = 0.0
    for value, reference in zip(actual, expected, strict=False):
        if comparable(value, reference):
            difference = value.double() - reference.reshape(value.shape).double()
            total += float(difference.abs().sum())
    return total


def _describe(
    case: FailureCase,
    failure: Failure,
    own_error: OwnError,
    more: int,
    share: float | None,
) -> Culprit:
    name, _ = case.sequence[own_error.call]
    view = case.view(name)
    spot = view.find(own_error.index)
    error = own_error.error
    prefix = ""
    facts = ["from what this machine gives on the same inputs"]
    if len(case.sequence) > 1:
        facts.append(f"in call {own_error.call + 1} of the sequence")
    if share is not None:
        facts.append(f"{share * 100:.0f} % of the output's error comes of it")
    if more:
        verb = "departs" if more == 1 else "depart"
        facts.append(f"{plural(more, 'more value')} {verb} likewise")
    if spot.delegate is not None:
        inside, part_error, note = _look_into_delegate(view, failure, own_error, spot)
        facts.append(note)
        if inside is None:
            prefix = "what comes out at "
            inside = _find_result_place(view, own_error)
        error = part_error or error
        spot = replace(spot, place=inside)
    where = f"{prefix}{view.describe(spot)}"
    if prefix:  # the operator that a delegate ends with is not what departs
        spot = replace(spot, place=None)
    sentence = f"on {failure.device}, first departs: {where}: {describe_error(error)} "
    sentence += f"{facts[0]}; {'; '.join(facts[1:])}".removesuffix("; ")
    return view.culprit(spot, spot.kind, sentence, error)


def _find_result_place(case: FailureCase, own_error: OwnError) -> int | None:
    """Return the place of the node whose value a delegate gives as the result that departs."""
    for call in case.lowered.instructions.delegates:
        if call.index == own_error.index and own_error.result < len(call.outputs):
            return call.outputs[own_error.result]
    return None


def _look_into_delegate(
    case: FailureCase, failure: Failure, own_error: OwnError, spot: Spot
) -> tuple[int | None, OutputError | None, str]:
    """Return the place of the node at which a delegate departs, its error, and how it was found;
    where none is found, None, and the reason."""
    try:
        module = lower_delegate(case, spot.delegate or 0)
    except PipelineError as refusal:
        return None, None, str(refusal)
    node, error, note = bisect_delegate(
        module,
        own_error.inputs,
        own_error.tolerance,
        min(MOST_SECONDS, case.budget.left),
        failure.run_package,
    )
    if node is None:
        return None, error, note
    operator = find_fused_operator(node)
    return NodePlaces(case.lowered.program).find(operator), error, note
