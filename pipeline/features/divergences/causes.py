"""Explains why an exported program diverges from its reference, if the cause can be recognized.

A rule takes the difference and returns a cause, or None; the first rule that applies is reported.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.features.divergences import statement_causes, value_causes
from pipeline.features.divergences.cause import Cause
from pipeline.features.divergences.difference import RunDifference

Rule = Callable[[RunDifference], Cause | None]
RULES: tuple[Rule, ...] = (
    # Most certain first: a mode or a weight explains everything that follows from it.
    value_causes.find_training_mode,
    value_causes.find_weights,
    value_causes.find_attribute,
    value_causes.find_fast_path,
    statement_causes.find_loop_count,
    statement_causes.find_number,
    statement_causes.find_taken_branch,
    statement_causes.find_option,
    value_causes.find_random_numbers,
    value_causes.find_dtype,
    value_causes.find_constant,
    statement_causes.find_export_flag,
    statement_causes.find_python_state,
    value_causes.find_outside_work,
)


# If outputs differ only by rounding, different operators on the way are not a cause.
EXACT_RULES: tuple[Rule, ...] = (
    value_causes.find_weights,
    value_causes.find_attribute,
    value_causes.find_fast_path,
    statement_causes.find_number,
    value_causes.find_dtype,
)


def find_cause(difference: RunDifference) -> Cause | None:
    """Return the cause of a difference, by the first rule that applies."""
    for rule in EXACT_RULES if difference.is_rounding else RULES:
        cause = rule(difference)
        if cause is not None:
            return cause
    return None
