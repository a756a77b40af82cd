"""Locates the place where a failed method goes wrong.

The package is walked in step with the lowered program, and a delegate that diverges is cut into
parts (`divergence`), unless the quantization loses too much (`quantization_noise`). A failure of
this search becomes a note and affects nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.config.validation import Limits
from pipeline.features.locating.case import (
    Evidence,
    FailureCase,
    Located,
    least_sqnr,
    run_until,
)
from pipeline.features.locating.divergence import locate_divergence
from pipeline.features.locating.interpreter.execute import read_value
from pipeline.features.locating.lost_cond import locate_lost_results
from pipeline.features.locating.quantization_noise import locate_quantization
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.store.reasons import reason
from pipeline.validate.budget import Budget, OutOfTimeError
from pipeline.validate.call_limits import MARGIN_DB
from pipeline.validate.default_limits import LEAST_ATOL, LEAST_RTOL, LEAST_SQNR
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.results import Validation

# If quantization loses next to nothing, rounding of ranges that are computed at run time leaves
# 40.3 dB between XNNPACK and the quantized program, measured on two linear layers.
_MOST_DB = 38.0
_SPENT = "validate.budget was exhausted before its turn"
_log = logging.getLogger(__name__)


def locate_failures(
    evidence: Evidence,
    validation: Validation,
    examples: Mapping[str, Sequence[InputSet]],
    budget: Budget | None = None,
) -> dict[str, Located]:
    """Locate the failures of each failed method, worst first, or note why it was not examined.

    Args:
        budget: the time limit; None means no limit.
    """
    budget = budget or Budget()
    evidence = hold_to_derived(evidence, validation)
    failed = [result for result in validation.methods if not result.ok]
    located: dict[str, Located] = {}
    for result in sorted(failed, key=lambda result: result.badness):
        name = result.method
        reason = _why_no_look(evidence, result)
        if not reason and budget.spent:
            reason = _SPENT
        if reason:
            located[name] = Located(notes=(f"{name}: not examined: {reason}",))
            continue
        method_examples = examples.get(name, ())
        located[name] = locate(evidence, name, result.failing, method_examples, budget)
    return {result.method: located[result.method] for result in failed}


def hold_to_derived(evidence: Evidence, validation: Validation) -> Evidence:
    """Return the evidence with derived limits, where the config's limits don't apply.

    Methods without tolerances in the config, and quantized methods, get limits that validation
    derived. The limits against the source become the config's for a quantized method, and derived
    ones for a method without tolerances.
    """
    results = {result.method: result for result in validation.methods}

    def against_lowered(method: str) -> Limits:
        config_limits = evidence.limits(method)
        result = results.get(method, MethodValidation(method))
        quantized = result.wide_quantized_limits
        if config_limits.atol is not None and not quantized:
            return config_limits
        limits = quantized or result.wide_limits
        derived = {name: value for name, value in limits.items() if value is not None}
        return Limits(**{"atol": LEAST_ATOL, "rtol": LEAST_RTOL, **derived})

    def against_source(method: str) -> Limits | None:
        result = results.get(method)
        config_limits = evidence.limits(method)
        if result is not None and result.quantized_runs:
            least = max(config_limits.min_sqnr or LEAST_SQNR, LEAST_SQNR)
            return config_limits.model_copy(update={"min_sqnr": least})
        if config_limits.atol is not None or result is None:
            return None
        return Limits(**result.wide_limits)

    return replace(evidence, limits=against_lowered, source_limits=against_source)


def _why_no_look(evidence: Evidence, failed: MethodValidation) -> str:
    """Return why a failed method can't be examined, or "" if it can."""
    about = failed.failures[0]["about"]
    if about == "lacking":
        return "the package lacks it"
    if about == "source":
        return "its source can't be compared with it"
    abouts = {failure["about"] for failure in failed.failures}
    if failed.limits_from != "quantized" and abouts == {"quantization"}:
        return "quantized methods write the state that it reads"
    if failed.method not in evidence.sources:
        is_constant = failed.kind == "constant"
        return (
            "no operator computes a constant"
            if is_constant
            else "its source has no such method"
        )
    declares = any(failure["about"] == "declared" for failure in failed.failures)
    if failed.not_run or not (failed.runs or failed.failing or declares):
        return "it did not run"  # a method that crashed a process would crash another
    return ""


def locate(
    evidence: Evidence,
    method: str,
    failing: Sequence[tuple[str, InputSet]],
    examples: Sequence[InputSet] = (),
    budget: Budget | None = None,
) -> Located:
    """Locate the place where a method that can be run goes wrong.

    Args:
        failing: the calls of the failed sequence, ending with the one that failed.
        examples: input sets to try if nothing was called, because the method's declaration differs
            from its source's.
        budget: the remaining time.
    """
    case = FailureCase(evidence, method, failing, budget or Budget())
    culprits: list[Culprit] = []
    try:
        with torch.no_grad():
            if not failing:
                program = evidence.sources[method]
                inputs = (
                    next(iter(examples), None) or generate_inputs(program, 1, 0, [])[0]
                )
                case.failing = [(method, inputs)]
            culprits += locate_lost_results(case)
            if not culprits:
                culprits += _locate_computation(case)
        if not culprits and not case.notes:
            case.note("nothing that could be compared diverges")
    except OutOfTimeError as error:
        case.note(f"{error} before the faulty operator was found")
    except Exception as error:  # an error here must not hide the failure being examined
        _log.debug("locating %s", method, exc_info=True)
        sentence = f"{type(error).__name__}: {reason(error)}"
        case.note(f"the faulty operator could not be found: {sentence}")
    return Located(tuple(culprits), tuple(case.notes), tuple(case.failing), case.first)


def _locate_computation(case: FailureCase) -> Iterator[Culprit]:
    if case.lowered.origins is None:
        yield from locate_divergence(case)
        return
    inputs = case.sequence[-1][1]
    by_float = case.advance(case.evidence.sources).call(inputs, ())
    by_quantized = case.advance(case.lowered_programs).call(inputs, ())
    # Backends round in their own ways. A divergence from the quantized program counts as rounding
    # if it is smaller than that program's divergence from the float program.
    case.floor = min(least_sqnr(by_quantized, by_float) - MARGIN_DB, _MOST_DB)
    if (
        case.source_limits is not None
    ):  # then the other limits are against the quantized program
        case.floor = max(case.floor, case.limits.min_sqnr or 0.0)
    loses = not case.all_agree(by_quantized, by_float, case.source_limits)
    try:
        loaded = run_until(case.data, case.sequence, budget=case.budget)
    except DelegateError:  # the walk reports where it stops
        yield from locate_divergence(case)
        return
    assert loaded is not None
    outputs = [read_value(loaded, index) for index in loaded.plan.outputs]
    if not loses or least_sqnr(outputs, by_quantized) < case.floor:
        culprits = list(locate_divergence(case))
        yield from culprits
        if culprits or not loses:
            return
    yield from locate_quantization(case, case.lowered.origins)
