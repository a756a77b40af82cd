"""Limits for special kinds of input sets (`InputSet.case`), other than random ones.

Features generate these input sets.
"""

from __future__ import annotations

from typing import Any

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.store.reasons import reason
from pipeline.validate.limits import drop_limits_of_noise, scale_limits


def ease_limits(limits: Limits, inputs: InputSet, output: int, expected: Any) -> Limits:
    """Return the limits on one output for an input set."""
    if inputs.case in ("zeros", "expanded"):
        return drop_limits_of_noise(limits, expected)
    if not inputs.growth:
        return limits
    return scale_limits(limits, inputs.growth[output])


def describe_source_error(error: Exception) -> str:
    """Describe an error that an operator of the source program raised."""
    return f"the source program itself fails: {type(error).__name__}: {reason(error)}"
