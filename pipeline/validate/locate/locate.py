"""Locates where a method that failed goes wrong.

First the package is compared with what its build gives (`damage`). Where that is the same, it is
walked beside the program that was lowered, and a delegate that diverges is cut into parts
(`divergence`); or it is the quantization that loses too much. Whatever fails in here becomes a
note, and fails nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import torch

from pipeline.devices.interpreter.execute import read_value
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.report.records import CulpritRecord as Culprit
from pipeline.store.errors import first_line
from pipeline.validate.locate.case import (
    Evidence,
    FailureCase,
    Located,
    least_sqnr,
    run_until,
)
from pipeline.validate.locate.damage import locate_damage
from pipeline.validate.locate.divergence import locate_divergence
from pipeline.validate.locate.quantization_noise import locate_quantization
from pipeline.validate.quantization import MARGIN_DB, MOST_DB
from pipeline.validate.results import LACKS, Validation

MOST_METHODS = 8
_log = logging.getLogger(__name__)


def locate_failures(
    evidence: Evidence, validation: Validation, examples: Mapping[str, Sequence[InputSet]]
) -> dict[str, Located]:
    """Locate, by method, the failures of those that this machine can run."""
    failed = [each for each in validation.methods if not each.ok and not each.not_run]
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
            continue
        declares = any("declare" in failure.what for failure in each.failures)
        may_run = bool(each.runs or each.failing or declares)
        located[name] = locate(evidence, name, each.failing, examples.get(name, ()), may_run)
    return located


def locate(
    evidence: Evidence,
    method: str,
    failing: Sequence[tuple[str, InputSet]],
    examples: Sequence[InputSet] = (),
    may_run: bool = True,
) -> Located:
    """Locate where a method goes wrong.

    Args:
        failing: the calls of the sequence that failed, the failing one last.
        examples: input sets to try where nothing was called, because the method does not declare
            what its source does.
        may_run: false for a method that does not load, or that ended the process that ran it. The
            package is only compared with its build then.
    """
    case = FailureCase(evidence, method, failing, may_run=may_run)
    try:
        with torch.no_grad():
            if may_run and not failing:
                program = evidence.sources[method]
                inputs = next(iter(examples), None) or generate_inputs(program, 1, 0, [])[0]
                case.failing = [(method, inputs)]
            culprits = list(locate_damage(case))
            if may_run and not culprits:
                culprits = list(_locate_computation(case))
    except Exception as error:  # a failure here must not hide the one that is looked into
        _log.debug("locating %s", method, exc_info=True)
        what = f"{type(error).__name__}: {first_line(error)}"
        case.note(f"where it goes wrong could not be found: {what}")
        return Located(notes=tuple(case.notes), calls=tuple(case.failing))
    if not culprits and not case.notes:
        what = "nothing that could be compared departs"
        case.note(what if may_run else "the package is what its build gives, and does not run")
    return Located(tuple(culprits), tuple(case.notes), calls=tuple(case.failing), **case.found)


def _locate_computation(case: FailureCase) -> Iterator[Culprit]:
    if case.lowered.origins is None:
        yield from locate_divergence(case)
        return
    inputs = case.sequence[-1][1]
    by_float = case.advance(case.evidence.sources).call(inputs, ())
    by_quantized = case.advance(case.lowered_programs).call(inputs, ())
    # What departs less from the quantized program than that does from the float one is rounding:
    # backends round in their own ways.
    case.floor = min(least_sqnr(by_quantized, by_float) - MARGIN_DB, MOST_DB)
    loses = not case.all_agree(by_quantized, by_float)
    loaded = run_until(case.data, case.sequence)
    assert loaded is not None
    given = [read_value(loaded, index) for index in loaded.plan.outputs]
    if not loses or least_sqnr(given, by_quantized) < case.floor:
        found = list(locate_divergence(case))
        yield from found
        if found or not loses:
            return
    yield from locate_quantization(case, case.lowered.origins)
