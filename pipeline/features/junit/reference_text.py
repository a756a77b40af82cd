"""The text of a case on the comparison of an exported program with its reference."""

from __future__ import annotations

from pipeline.report.elements import Json
from pipeline.report.formatting import error
from pipeline.report.references import MOST_NAMED, describe_limits
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import listed, plural


def describe_reference(reference: Json) -> str:
    """Return what came of the comparison with a reference: why it has not passed, or how near the
    exported program is."""
    if reference["verdict"] != PASSED:
        return str(reference["reason"])
    worst = reference["max_abs"]
    near = "exactly"
    if worst:
        near = f"within {error(worst)}"
    compared = listed(reference["compared"], MOST_NAMED)
    calls = f"{plural(reference['calls'], 'call')} of {compared} {near}"
    limits = describe_limits(reference)
    if limits:
        return f"{calls}, held to {limits}"
    return calls
