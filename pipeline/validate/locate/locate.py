"""Says where a method that failed goes wrong: the first operator whose value departs, the delegate
that it is in, what of the package is damaged, or what a quantization loses.

First the package is compared with what its build gives (`damage`). Where that is the same, what it
computes is compared with other methods and other states of the source (`structure`); then it is
walked beside the program that was lowered, and a delegate that departs is cut into parts
(`departures`). Whatever fails in here is told, and fails nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.export import ExportedProgram

from pipeline.devices.interface import DeviceError
from pipeline.devices.interpreter.execute import value_of
from pipeline.devices.session import Session
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import flatten
from pipeline.report.records import CulpritRecord as Culprit
from pipeline.validate.locate.case import Case, Evidence, Located, figures, first_line, least_sqnr
from pipeline.validate.locate.damage import damaged
from pipeline.validate.locate.divergence import departures
from pipeline.validate.locate.node_values import NodeValues, together
from pipeline.validate.locate.quantization_noise import worst_layers
from pipeline.validate.locate.structure import findings, takes
from pipeline.validate.results import LACKS, Validation

MOST_METHODS = 8
MARGIN, MOST_FLOOR = 3.0, 41.0  # dB, between a package and the quantized program that it is made of
_log = logging.getLogger(__name__)


def locate(
    evidence: Evidence,
    method: str,
    failing: Sequence[tuple[str, InputSet]],
    examples: Sequence[InputSet] = (),
    may_run: bool = True,
) -> Located:
    """Where a method goes wrong.

    Args:
        failing: the calls of the sequence that failed, the failing one last.
        examples: input sets to try where nothing was called, because the method does not declare
            what its source does.
        may_run: false for a method that does not load, or that ended the process that ran it. The
            package is only compared with its build then.
    """
    case = Case(evidence, method, failing, may_run=may_run)
    try:
        with torch.no_grad():
            if may_run and not failing:
                case.failing = [(method, _any_inputs(evidence.sources[method], examples))]
            culprits = _culprits(case)
    except Exception as error:  # a failure here must not hide the one that is looked into
        _log.debug("locating %s", method, exc_info=True)
        what = f"{type(error).__name__}: {first_line(error)}"
        case.note(f"where it goes wrong could not be found: {what}")
        return Located(notes=tuple(case.notes), calls=tuple(case.failing))
    if not culprits and not case.notes:
        what = "nothing that could be compared departs"
        case.note(what if may_run else "the package is what its build gives, and does not run")
    return Located(tuple(culprits), tuple(case.notes), calls=tuple(case.failing), **case.shown)


def _any_inputs(program: ExportedProgram, examples: Sequence[InputSet]) -> InputSet:
    return next(iter(examples), None) or generate_inputs(program, 1, 0, [])[0]


def _culprits(case: Case) -> list[Culprit]:
    for look in (damaged, _structure, _computation) if case.may_run else (damaged,):
        if found := list(look(case)):
            return found
    return []


def _structure(case: Case) -> Iterator[Culprit]:
    if len(case.methods) > 1:  # whose state is that of others too
        return
    session = Session(case.evidence.files)
    try:
        given = [session.run(case.method, inputs) for inputs in case.calls]
    except DeviceError as error:
        case.note(f"on its device it {error.reason}")
        return
    sources = case.evidence.sources
    for found in findings(case.method, sources, case.calls, given, case.outputs_agree):
        sentence = f"the package's method '{case.method}' {found.what}"
        yield case.culprit(None, found.kind, sentence)


def _computation(case: Case) -> Iterator[Culprit]:
    if case.made.origins is None:
        yield from departures(case)
        return
    lowered = {name: case.of(name).made.program for name in case.methods}
    by_float, by_quantized = case.outputs_of(case.evidence.sources), case.outputs_of(lowered)
    loaded = case.replayed(len(case.sequence))[case.method]
    given = [value_of(loaded, index) for index in loaded.plan.outputs]
    # What departs less from the quantized program than that does from the float one is rounding:
    # backends round in their own ways.
    case.floor = min(least_sqnr(by_quantized, by_float), MOST_FLOOR) - MARGIN
    loses = not case.all_agree(by_quantized, by_float)
    if not loses or least_sqnr(given, by_quantized) < case.floor:
        found = list(departures(case))
        yield from found
        if found or not loses:
            return
    yield from _quantization(case, case.made.origins)


def _quantization(case: Case, origins: Mapping[int, int]) -> Iterator[Culprit]:
    lowered = {name: case.of(name).made.program for name in case.methods}
    sources = together({name: case.evidence.sources[name] for name in case.methods})
    quantized = together(lowered)
    for name, inputs in case.sequence[:-1]:
        sources[name].call(inputs, ())
        quantized[name].call(inputs, ())
    source, made = sources[case.method], quantized[case.method]
    places = {of: place for place, of in origins.items()}
    for rank, layer in enumerate(worst_layers(source, made, origins, case.calls[-1])):
        node = source.nodes[layer.place]
        lead = (
            "the quantization itself departs from floating point, most in"
            if not rank
            else "then in"
        )
        sentence = f"{lead} {case.told_node(node, node)}: {figures(layer.own)} by itself"
        sentence += f", {figures(layer.total)} with what comes before it"
        yield case.culprit(places[layer.place], "operator", sentence, layer.own) | {
            "operator": str(node.target)
        }


def locate_failures(
    evidence: Evidence, validation: Validation, examples: Mapping[str, Sequence[InputSet]]
) -> dict[str, Located]:
    """By method, of those that failed and that this machine can run."""
    failed = [each for each in validation.methods if not each.ok and not each.not_run]
    unknown = [each.method for each in validation.methods if each.kind == "unknown"]
    located: dict[str, Located] = {}
    for each in failed:
        name = each.method
        if name not in evidence.sources:
            continue
        if len(located) == MOST_METHODS:
            limit = f"{MOST_METHODS} methods are, of {len(failed)} that failed"
            located[name] = Located(notes=(f"{name}: not looked into: {limit}",))
            break
        if each.failures[0].what.startswith(LACKS):
            located[name] = renamed(evidence, name, unknown)
            continue
        declares = any("declare" in failure.what for failure in each.failures)
        may_run = bool(each.runs or each.failing or declares)
        located[name] = locate(evidence, name, each.failing, examples.get(name, ()), may_run)
    return located


def renamed(evidence: Evidence, missing: str, unknown: Sequence[str]) -> Located:
    """Whether a method that a package lacks is there under another name.

    Args:
        unknown: methods of the package that its source has not.
    """
    case = Case(evidence, missing, ())
    try:
        program = evidence.sources[missing]
        inputs = flatten(program, _any_inputs(program, ()))
        expected = NodeValues(program).call(inputs, ())
        for name in unknown:
            session = Session(evidence.files)
            try:
                given = session.run(name, inputs)
            except DeviceError:
                continue
            if case.all_agree(given, expected) and takes(program, inputs):
                sentence = f"the package has the method '{missing}' under the name '{name}'"
                return Located((case.culprit(None, "order", sentence),))
    except Exception as error:  # as above
        _log.debug("looking for %s", missing, exc_info=True)
        return Located(notes=(f"{missing}: could not be looked for: {first_line(error)}",))
    return Located()
