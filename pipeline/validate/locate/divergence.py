"""Where what a method computes departs from the program that was lowered, into its delegates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from executorch.exir.lowered_backend_module import LoweredBackendModule

from pipeline.compile.inspect.delegation import Places
from pipeline.devices.interpreter.execute import steps, value_of
from pipeline.devices.interpreter.load import Method, instructions_of
from pipeline.devices.session import EXECUTORCH, Session
from pipeline.report.records import CulpritKind
from pipeline.report.records import CulpritRecord as Culprit
from pipeline.validate.locate.bisect_delegate import bisect_partition
from pipeline.validate.locate.bisect_runtime import probe
from pipeline.validate.locate.case import Again, Case, figures, first_line
from pipeline.validate.locate.damage import reader_of
from pipeline.validate.locate.node_values import NodeValues, together
from pipeline.validate.locate.plan_diff import other_named_data, plans
from pipeline.validate.locate.walk import (
    CLOSER,
    ROUNDING,
    Compared,
    Departure,
    Tolerance,
    Walked,
    first_departure,
    scale_of,
    state_values,
    walk,
)
from pipeline.validate.metrics import OutputError, compare


def departures(case: Case) -> Iterator[Culprit]:
    """The first departure in the calls of a case, or a state that is another one. Where there is
    none, the case has a note of what that means."""
    loaded = case.load()
    sources = together({name: case.of(name).made.program for name in case.methods})
    for name in case.methods:
        own, state = case.of(name), dict(case.of(name).made.instructions.state)
        if what := _other_state(own, loaded[name], sources[name], state):
            sentence = f"the package's method '{name}' begins with other values of {what} than its"
            yield own.culprit(None, "state", f"{sentence} source")
            return
    for number, (name, inputs) in enumerate(case.sequence):
        found = _of_call(case.of(name), number, inputs, loaded[name], sources[name])
        if found is not None:
            yield from found
            return
    yield from _of_the_runtime(case)


def _of_call(
    case: Case, number: int, inputs: list[Any], loaded: Method, source: NodeValues
) -> list[Culprit] | None:
    """The departure in one call; none where it departs and nothing tells where, with a note; None
    where it doesn't."""
    walked = walk(loaded, source, case.made.instructions, inputs)
    if source.left_out:
        case.note(f"{len(source.left_out)} values were too large to be compared")
    if walked.stopped:
        return [_stopped(case, walked)]
    wrong = not case.as_lowered(walked.outputs, walked.expected)
    state = _other_state(case, loaded, source, dict(case.made.instructions.state))
    closer = CLOSER if wrong or state else CLOSER[:1]
    departure = first_departure(walked, source, case.limits, closer)
    if departure is not None and (wrong or state or number + 1 < len(case.sequence)):
        return [_departed(case, departure, number)]
    if state:
        sentence = (
            f"the package's method '{case.method}' leaves {state} with other values than its "
            f"source does, after call {number + 1}"
        )
        return [case.culprit(None, "state", sentence)]
    if wrong and _is_rounding(walked):
        case.note("what departs is rounding: the limits are closer than its dtype computes")
    elif wrong:
        case.note("its outputs depart, and no value before them that could be compared")
    return [] if wrong else None


def _of_the_runtime(case: Case) -> Iterator[Culprit]:
    """Where the interpreter computes what the source computes, and what ran the package doesn't."""
    about = "the interpreter computes from its bytes what the source computes"
    device = Session(case.evidence.files).device_of(case.method)
    if device.type != EXECUTORCH:
        case.note(about)
        return
    if len(case.sequence) > 1:
        case.note(f"{about}; where ExecuTorch's runtime departs in a sequence is not looked for")
        return
    files, inputs = case.evidence.files, case.calls[0]
    try:
        found = probe(case.data, files, case.method, inputs, case.limits)
    except Exception as error:  # whatever the serializer or the runtime refuses
        case.note(f"{about}; ExecuTorch's runtime could not be looked at ({first_line(error)})")
        return
    if found.index is None or found.error is None:
        case.note(f"{about}; ExecuTorch's runtime: {found.note}")
        return
    place, backend, number = case.place_of(found.index)
    where = case.told(place, backend, number)
    sentence = (
        f"first departs: {where}, in ExecuTorch's runtime alone: {figures(found.error)} from what "
        f"the interpreter computes of the same bytes; {found.note}"
    )
    kind: CulpritKind = "operator" if number is None else "delegate"
    yield case.culprit(place, kind, sentence, found.error, backend, number)


def _is_rounding(walked: Walked) -> bool:
    """Whether the outputs differ by a few units in the last place of the greatest value alone."""
    for actual, expected in zip(walked.outputs, walked.expected, strict=False):
        error = compare(actual, expected)
        if error.max_abs == 0:
            continue
        if not isinstance(expected, torch.Tensor) or not expected.dtype.is_floating_point:
            return False
        unit = torch.finfo(expected.dtype).eps * scale_of([expected])
        if error.max_abs > ROUNDING * unit:
            return False
    return True


def _other_state(case: Case, loaded: Method, source: NodeValues, state: Mapping[str, int]) -> str:
    """The buffers whose values differ now, for people."""
    now, wanted = state_values(loaded, state), source.state()
    wrong = []
    for name, actual in now.items():
        expected = wanted.get(name)
        if expected is None or not isinstance(actual, torch.Tensor):
            continue
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            continue
        compared = Compared(0, 0, 0, 0, compare(actual, expected), actual, expected)
        if Tolerance(case.limits, scale_of([expected])).departs(compared):
            wrong.append(f"'{name}'")
    return ", ".join(wrong)


def _stopped(case: Case, walked: Walked) -> Culprit:
    place, backend, number = case.place_of(walked.stopped_at or 0)
    sentence = f"stops at {case.told(place, backend, number)}: {walked.stopped}"
    kind: CulpritKind = "operator" if number is None else "delegate"
    return case.culprit(place, kind, sentence, None, backend, number)


def _departed(case: Case, departure: Departure, call: int) -> Culprit:
    compared = departure.compared
    case.shown |= {
        "index": compared.index,
        "output": compared.output,
        "call": call,
        "expected": compared.expected,
    }
    _, backend, number = case.place_of(compared.index)
    place: int | None = compared.place
    error: OutputError
    error, more = compared.error, "all that it is given agrees"
    if number is not None:
        place, error, more = _in_delegate(case, departure, call, number)
    in_call = f", in call {call + 1} of the sequence" if len(case.sequence) > 1 else ""
    where = case.told(place, backend, number)
    sentence = f"first departs: {where}: {figures(error)}{in_call}; {more}"
    kind: CulpritKind = "operator" if number is None else "delegate"
    return case.culprit(place, kind, sentence, error, backend, number)


def _in_delegate(
    case: Case, departure: Departure, call: int, number: int
) -> tuple[int | None, OutputError, str]:
    """The place of the node at which a delegate departs, its error, and what else is to be said."""
    compared = departure.compared
    otherwise = compared.place, compared.error
    try:
        again = case.evidence.again(case.method)
    except Exception as error:  # whatever a backend raises
        return *otherwise, f"it could not be lowered again ({first_line(error)})"
    if number >= len(again.delegates):
        return *otherwise, "lowered again, the method has other delegates"
    module, payload = again.delegates[number], _payload(case, number)
    if bytes(module.processed_bytes) != payload:
        return *otherwise, _other_payload(case, payload, again)
    named = _named_data_of(module)
    what, constant = other_named_data(case.data.named, named, case.made.program)
    if what:
        reader = reader_of(case, constant) if constant else None
        at = compared.place if reader is None else reader
        return at, compared.error, f"the package {what}"

    def departs(error: OutputError, actual: Any, expected: Any) -> bool:
        return departure.tolerance.departs(Compared(0, 0, 0, 0, error, actual, expected))

    found = bisect_partition(module, _delegate_inputs(case, compared, call), departs)
    if found.node is None:
        return *otherwise, found.note
    place = Places(again.program).of(found.node)
    return compared.place if place is None else place, found.error or compared.error, found.note


def _payload(case: Case, number: int, method: str = "") -> bytes:
    delegate = plans(case.data)[method or case.method].delegates[number]
    return bytes(case.data.file.program.backend_delegate_data[delegate.processed.index].data)


def _other_payload(case: Case, payload: bytes, again: Again) -> str:
    """Whose it is."""
    for number, module in enumerate(again.delegates):
        if bytes(module.processed_bytes) == payload:
            return f"its payload is that of delegate {number}, by what lowering gives now"
    for name, plan in plans(case.data).items():
        for number in range(len(plan.delegates)):
            if name != case.method and _payload(case, number, name) == payload:
                return f"its payload is that of delegate {number} of '{name}'"
    return "its payload is not what lowering gives now"


def _named_data_of(module: LoweredBackendModule) -> dict[str, bytes]:
    given = module.named_data_store_output
    if given is None:
        return {}
    return {key: bytes(given.buffers[e.buffer_index]) for key, e in given.pte_data.items()}


def _delegate_inputs(case: Case, compared: Compared, call: int) -> list[Any]:
    """What a delegate was given when it departed."""
    loaded = case.replayed(call)[case.method]
    visit = 0
    for number in steps(loaded, case.sequence[call][1]):
        if number == compared.index:
            if visit == compared.visit:
                break
            visit += 1
    args = instructions_of(loaded.plan)[compared.index].instr_args.args
    split = len(args) - loaded.results[compared.index]
    return [value_of(loaded, index) for index in args[:split]]
