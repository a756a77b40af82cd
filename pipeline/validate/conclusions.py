"""Judges what only all calls of a method together show: its movement and its conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.export import ExportedProgram

from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.validate.budget import Budget
from pipeline.validate.call_judge import CallJudge
from pipeline.validate.default_limits import LEAST_SQNR
from pipeline.validate.method_result import MethodValidation

ACCEPT = "`validate: {allow: [not-judged]}` accepts it as it is"
RETURNS_NOTHING = (
    "its outputs don't show its changes to state; `validate.sequences` can call it before "
    f"methods that read the state; {ACCEPT}"
)

QUANTIZATION_UNJUDGED: dict[str, Any] = {
    "verdict": "not run",
    "reason": 'this installation has no feature "quantization_loss"',
    "limits": {},
    "floor": LEAST_SQNR,
    "examples": [],
    "generated": [],
}


def conclude_movement(
    result: MethodValidation,
    calls: CallJudge,
    examples: Sequence[InputSet],
    is_observed: bool,
    budget: Budget,
) -> None:
    """Record which outputs carried no information, so that comparing them shows nothing.

    Args:
        is_observed: whether methods that share the method's state were called after it.
    """
    if result.runs and result.state and not result.outputs and not is_observed:
        result.returns_nothing = RETURNS_NOTHING
    for movement in calls.movement:
        result.movement = movement.judge(
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
    """Return where the source itself loses precision that the package can't keep, or ""."""
    if inputs is None or budget.spent:
        return ""
    with suppress(Exception):  # any operator may raise: then the place is unknown
        words = call_all("explain_conditioning", program, inputs, most_share)
        return next(words, "")
    return ""
