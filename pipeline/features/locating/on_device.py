"""Locates where a device diverges from this machine when both run the same bytes.

The device records the values of its instructions, and `own_errors.py` finds the first instruction
that diverges by itself. This module computes its share of the outputs' error and names its
operator. A delegate that diverges is cut into parts, each of which runs on the device and here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

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
from pipeline.features.locating.locate import hold_to_derived
from pipeline.features.locating.measuring import collect_evidence
from pipeline.features.locating.own_errors import Executed, OwnError, find_own_error
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.features.locating.walk import comparable, find_scale
from pipeline.program.graphs import NodePlaces
from pipeline.run.prove.measuring import Measurement
from pipeline.store.errors import PipelineError, plural
from pipeline.store.reasons import reason
from pipeline.validate.budget import Budget, OutOfTimeError
from pipeline.validate.metrics import OutputError

_log = logging.getLogger(__name__)


class Failure(Protocol):
    """Calls that a device gets wrong, as in `features.native.device_failure.DeviceFailure`."""

    device: str
    method: str
    calls: Sequence[MethodCall]

    def record(
        self, budget: Budget
    ) -> tuple[list[Any], Sequence[Sequence[Executed]]] | None: ...
    def run_package(
        self, files: PackageFiles, method: str, inputs: Sequence[Any]
    ) -> Sequence[Any]: ...


def locate_on_device(
    measurement: Measurement, failure: Failure, budget: Budget
) -> tuple[list[Culprit], list[str]]:
    """Return the first instruction at which a device diverges, and notes on what remains unknown.

    Args:
        budget: the time limit.
    """
    evidence = hold_to_derived(
        collect_evidence(measurement.subject, measurement.files, budget),
        measurement.validation,
    )
    return locate_divergence(evidence, failure, budget)


def locate_divergence(
    evidence: Evidence, failure: Failure, budget: Budget
) -> tuple[list[Culprit], list[str]]:
    """Do the work of `locate_on_device`, given the known facts about the package.

    Args:
        evidence: has the limits that apply to the method.
    """
    case = FailureCase(evidence, failure.method, (), budget, failure.calls)
    prefix = f"on {failure.device}: "
    culprits: list[Culprit] = []
    try:
        budget.check()
        with torch.no_grad():
            culprits += _locate(case, failure)
    except OutOfTimeError as error:
        case.note(f"{prefix}{error} before the diverging operator was found")
    except Exception as error:  # it must not hide the failure being examined
        _log.debug("locating %s on %s", failure.method, failure.device, exc_info=True)
        sentence = f"{type(error).__name__}: {reason(error)}"
        case.note(f"{prefix}the diverging operator could not be found: {sentence}")
    return culprits, case.notes


def _locate(case: FailureCase, failure: Failure) -> Iterator[Culprit]:
    recorded = failure.record(case.budget)
    if recorded is None:
        case.note(f"on {failure.device}: called again, it returns the expected values")
        return
    outputs, executions = recorded
    expected = _run_here(case)
    unrecorded: list[int] = []
    scale = find_scale(expected)
    own_error, more = find_own_error(case, executions, scale, unrecorded)
    if unrecorded:
        values = plural(len(unrecorded), "value")
        case.note(f"on {failure.device}: no room was left to record {values}")
    if own_error is None:
        case.note(
            f"on {failure.device}: every instruction whose values were recorded returns the same "
            "values as here on the same inputs"
        )
        return
    share = _find_share(case, own_error, outputs, expected)
    yield _describe(case, failure, own_error, more, share)


def _run_here(case: FailureCase, own_error: OwnError | None = None) -> list[Any]:
    """Make the calls in the interpreter; return the outputs of the last call.

    Args:
        own_error: a result to take from the device.
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
    """Return the share of the outputs' error, 0 to 1, that one result accounts for.

    It is measured with only this result taken from the device. None means that it can't be
    computed.
    """
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
    facts = ["from the values on this machine for the same inputs"]
    if len(case.sequence) > 1:
        facts.append(f"in call {own_error.call + 1} of the sequence")
    if share is not None:
        facts.append(f"{share * 100:.0f} % of the output's error comes from it")
    if more:
        verb = "diverges" if more == 1 else "diverge"
        facts.append(f"{plural(more, 'more value')} {verb} too")
    if spot.delegate is not None:
        inside, part_error, note = _look_into_delegate(view, failure, own_error, spot)
        facts.append(note)
        if inside is None:
            prefix = "the output of "
            inside = _find_result_place(view, own_error)
        error = part_error or error
        spot = replace(spot, place=inside)
    where = f"{prefix}{view.describe(spot)}"
    if prefix:  # the delegate's last operator isn't the culprit
        spot = replace(spot, place=None)
    sentence = (
        f"on {failure.device}, first divergence: {where}: {describe_error(error)} "
    )
    sentence += f"{facts[0]}; {'; '.join(facts[1:])}".removesuffix("; ")
    return view.culprit(spot, spot.kind, sentence, error)


def _find_result_place(case: FailureCase, own_error: OwnError) -> int | None:
    """Return the place of the node whose value is the diverging result of a delegate."""
    for call in case.lowered.instructions.delegates:
        if call.index == own_error.index and own_error.result < len(call.outputs):
            return call.outputs[own_error.result]
    return None


def _look_into_delegate(
    case: FailureCase, failure: Failure, own_error: OwnError, spot: Spot
) -> tuple[int | None, OutputError | None, str]:
    """Return the place of the node at which a delegate diverges, its error, and how it was found.

    If no node is found, return None and the reason.
    """
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
