"""Judges what only all calls of a method together show: its quantization, its movement, and how
ill-conditioned it is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.export import ExportedProgram

from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.report.method_records import QuantizationRecord
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import listed
from pipeline.validate.budget import Budget
from pipeline.validate.call_judge import CallJudge
from pipeline.validate.default_limits import LEAST_SQNR
from pipeline.validate.method_result import MethodValidation

ACCEPT = "`validate: {allow: [not-judged]}` accepts it as it is"
RETURNS_NOTHING = (
    "it returns nothing that shows what it did to its state; `validate.sequences` can call it "
    f"before methods that read that; {ACCEPT}"
)

QUANTIZATION_UNJUDGED: QuantizationRecord = {
    "verdict": "not run",
    "reason": 'this installation has no feature "quantization_loss"',
    "limits": {},
    "floor": LEAST_SQNR,
    "examples": [],
    "generated": [],
}


def conclude_quantization(
    result: MethodValidation,
    program: ExportedProgram,
    calls: CallJudge,
    judge: Any,
    examples: Sequence[InputSet],
) -> None:
    """Add the verdict on a quantization to a method's result, and each departure as a failure.

    Args:
        judge: what `judge_quantization` of a feature made for the method.
    """
    for output, fault in judge.find_departures():
        result.fail(fault, output=output, about="quantization")
        if not result.failing:
            result.failing = calls.noisiest
    failed = any(failure["about"] == "quantization" for failure in result.failures)
    left_out = [inputs for inputs in examples if inputs.origin in result.left_out]
    record = judge.judge(failed, len(left_out), bool(result.random))
    still: list[str] = []
    for movement in calls.float_movement:
        still += movement.find_indifferent_outputs(
            program, result.outputs, result.state, examples
        )
    # A failure stays one: what is wrong was shown, whatever else could not be.
    if still and record["verdict"] == PASSED:
        record["verdict"] = "not judged"
        record["reason"] = (
            f"its limits could not fail for {listed(still, 3)}: they are wider than the float "
            "program moves over all calls; set stricter ones"
        )
    result.quantization = record


def conclude_movement(
    result: MethodValidation,
    program: ExportedProgram,
    calls: CallJudge,
    examples: Sequence[InputSet],
    is_observed: bool,
    budget: Budget,
) -> None:
    """Say which outputs carried no information, whatever was compared.

    Args:
        program: what the package was compared with: the source, or its quantized program.
        is_observed: whether methods that share its state were called after it.
    """
    if result.runs and result.state and not result.outputs and not is_observed:
        result.returns_nothing = RETURNS_NOTHING
    for movement in calls.movement:
        result.movement = movement.judge(
            program,
            result.outputs,
            result.state,
            examples,
            result.unjudged_places,
            bool(result.random),
            is_observed,
            budget,
        )


def describe_ill_conditioning(
    program: ExportedProgram, inputs: InputSet | None, most_share: float, budget: Budget
) -> str:
    """Say where the source itself loses what the package can't keep; "" if that is not seen."""
    if inputs is None or budget.spent:
        return ""
    with suppress(Exception):  # whatever an operator raises: then it is not known
        words = call_all("explain_conditioning", program, inputs, most_share)
        return next(words, "")
    return ""
