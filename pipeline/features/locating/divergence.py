"""Locates where a method diverges from the lowered program, down into its delegates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule

from pipeline.config.validation import Limits
from pipeline.devices.package_data import named_bytes, read_payload
from pipeline.features.locating.bisect_delegate import MOST_SECONDS, bisect_delegate
from pipeline.features.locating.bisect_runtime import locate_in_runtime
from pipeline.features.locating.case import (
    FailureCase,
    Spot,
    describe_error,
    load_methods,
    run_until,
)
from pipeline.features.locating.interpreter.execute import read_value
from pipeline.features.locating.interpreter.load import (
    InterpretedMethod,
    get_instructions,
)
from pipeline.features.locating.named_weights import diff_named_data, find_reader
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.features.locating.walk import (
    CLOSER,
    ROUNDING,
    Compared,
    Tolerance,
    find_scale,
    first_divergence,
    inputs_agree,
    walk,
)
from pipeline.program.graphs import NodePlaces
from pipeline.store.errors import PipelineError
from pipeline.store.reasons import reason
from pipeline.store.sizes import human_size
from pipeline.validate.metrics import OutputError
from pipeline.validate.node_values import MOST_BYTES, MOST_VISITS, NodeValues


def locate_divergence(case: FailureCase) -> Iterator[Culprit]:
    """Yield the first divergence in the calls of a case, or a difference in state.

    If there is none, the case gets a note that says what this means.
    """
    loaded = load_methods(case.data, case.methods)
    sources = case.make_sources(case.lowered_programs)
    for name in case.methods:
        view = case.view(name)
        if buffers := _differing_state(view, loaded[name], sources[name]):
            sentence = f"the package's method '{name}' starts with values of {buffers} other than"
            yield view.culprit(Spot(), "state", f"{sentence} its source")
            return
    for number, (name, inputs) in enumerate(case.sequence):
        culprits = _check_call(
            case.view(name), number, inputs, loaded[name], sources[name]
        )
        if culprits is not None:
            yield from culprits
            return
    yield from locate_in_runtime(case)


def _check_call(
    case: FailureCase,
    number: int,
    inputs: Sequence[Any],
    loaded: InterpretedMethod,
    source: NodeValues,
) -> list[Culprit] | None:
    """Return the divergence in one call, or None if there is none.

    The list is empty, and the case has a note, if the call diverges at an unknown place.
    """
    walked = walk(loaded, source, case.lowered.instructions, inputs)
    if source.left_out:
        held = f"{human_size(MOST_BYTES)}, and {MOST_VISITS} passes through a loop"
        case.note(
            f"{len(source.left_out)} values were not all compared: {held} are kept"
        )
    if walked.stopped:
        spot = case.find(walked.stopped_at or 0)
        sentence = f"stops at {case.describe(spot)}: {walked.stopped}"
        return [case.culprit(spot, spot.kind, sentence)]
    wrong = not case.matches_lowered(walked.outputs, walked.expected)
    buffers = _differing_state(case, loaded, source)
    closer = CLOSER if wrong or buffers else CLOSER[:1]
    divergence = first_divergence(walked, source, case.limits, closer)
    if divergence is not None and (wrong or buffers or number + 1 < len(case.sequence)):
        compared, tolerance = divergence
        agrees = inputs_agree(walked, source, compared, tolerance)
        return [_describe_divergence(case, compared, tolerance, number, agrees)]
    if buffers:
        sentence = (
            f"the package's method '{case.method}' leaves {buffers} with different values than its "
            f"source does, after call {number + 1}"
        )
        return [case.culprit(Spot(), "state", sentence)]
    exact = Tolerance(Limits(atol=0, rtol=0), 1.0)  # except for rounding
    if wrong and exact.first_error(walked.outputs, walked.expected) is None:
        units = f"{ROUNDING} units in the last place of the greatest value"
        case.note(
            f"the difference is rounding (within {units}); the limits are tighter than that"
        )
    elif wrong:
        case.note(
            "its outputs diverge, but no earlier value that could be compared does"
        )
    return [] if wrong else None


def _differing_state(
    case: FailureCase, loaded: InterpretedMethod, source: NodeValues
) -> str:
    """Return the names of the buffers whose values differ now, in words."""
    buffers = source.buffers()
    differing = []
    for name, index in case.lowered.instructions.state:
        actual = read_value(loaded, index)
        expected = buffers.get(name)
        if expected is None or not isinstance(actual, torch.Tensor):
            continue
        if actual.shape == expected.shape and actual.dtype == expected.dtype:
            tolerance = Tolerance(case.limits, find_scale([expected]))
            if tolerance.first_error([actual], [expected]) is not None:
                differing.append(f"'{name}'")
    return ", ".join(differing)


def _describe_divergence(
    case: FailureCase,
    compared: Compared,
    tolerance: Tolerance,
    call: int,
    inputs_agree: bool,
) -> Culprit:
    case.first[call] = compared
    note = "all its inputs agree"
    if not inputs_agree:
        note = "not all its inputs could be compared"
    place = compared.place
    error = compared.error
    spot = case.find(compared.index)
    prefix = ""
    if spot.delegate is not None:
        inside, error, note = _look_into_delegate(
            case, compared, tolerance, call, spot.delegate
        )
        if inside is None:
            prefix = "the output of "
        else:
            place = inside
    spot = replace(spot, place=place)
    in_call = ""
    if len(case.sequence) > 1:
        in_call = f", in call {call + 1} of the sequence"
    where = f"{prefix}{case.describe(spot)}"
    sentence = f"first divergence: {where}: {describe_error(error)}{in_call}; {note}"
    return case.culprit(spot, spot.kind, sentence, error)


def _look_into_delegate(
    case: FailureCase, compared: Compared, tolerance: Tolerance, call: int, number: int
) -> tuple[int | None, OutputError, str]:
    """Return the place of the node at which a delegate diverges, its error, and how it was found.

    If no node is found, return None, the error of the delegate's output, and the reason.
    """
    otherwise = None, compared.error
    try:
        module = lower_delegate(case, number)
    except PipelineError as error:
        return *otherwise, str(error)
    weights = named_bytes(module.named_data_store_output)
    fault, constant = diff_named_data(case.data.named, weights, case.lowered.program)
    if fault:
        reader = find_reader(constant, case.lowered.program) if constant else None
        return reader, compared.error, f"the package {fault}"
    calls = case.sequence[: call + 1]
    at = (compared.index, compared.visit)
    loaded = run_until(case.data, calls, *at, case.budget)
    assert loaded is not None  # it ran, and diverged
    args = get_instructions(loaded.plan)[compared.index].instr_args.args
    argument_indices = args[: len(args) - loaded.results[compared.index]]
    inputs = [read_value(loaded, index) for index in argument_indices]
    seconds = min(MOST_SECONDS, case.budget.left)
    node, part_error, note = bisect_delegate(module, inputs, tolerance, seconds)
    place = None if node is None else NodePlaces(case.lowered.program).find(node)
    return place, part_error or compared.error, note


def lower_delegate(case: FailureCase, number: int) -> LoweredBackendModule:
    """Lower a method again; return the delegate whose payload is the package's.

    Raises:
        PipelineError: there is no such delegate; the message says why.
    """
    if case.budget.spent:
        raise PipelineError(
            "validate.budget was exhausted before its delegate could be split"
        )
    try:
        delegates = case.evidence.lower_again(case.method)
    except Exception as error:  # a backend may raise anything
        why = f"it could not be lowered again ({reason(error)})"
        raise PipelineError(why) from error
    if number >= len(delegates):
        raise PipelineError("lowered again, the method has other delegates")
    module = delegates[number]
    plan = case.data.plans[case.method]
    if bytes(module.processed_bytes) != read_payload(case.data, plan.delegates[number]):
        raise PipelineError("its payload differs from what lowering produces now")
    return module
