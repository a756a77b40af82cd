"""The drop in an output's SQNR since the baseline, in decibels."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from pipeline.features.gates.gate import ROUNDING, Gate, GateSubject, Measured
from pipeline.features.gates.outputs import output_names
from pipeline.features.gates.wording import MOST
from pipeline.store.errors import listed


def measure(method: GateSubject, limit: float) -> Measured:
    sqnrs = method.now["sqnr_db"]
    accepted = method.before["sqnr_db"]
    if sqnrs is None:
        return None, "its SQNR was not measured, and max_sqnr_drop limits its drop"
    if len(sqnrs) != len(accepted):
        return None, (
            f"has {len(sqnrs)} outputs, {len(accepted)} in the baseline; "
            f"`doit baseline {method.package}` accepts that"
        )
    names = output_names(method.facts.get("signature", {}), len(sqnrs))
    drops = []
    beyond = []
    for name, before, now in zip(names, accepted, sqnrs, strict=True):
        if (before is None) != (now is None):
            where = "in the baseline" if now is None else "now"
            return None, (
                f"{name} has an SQNR only {where}; `doit baseline {method.package}` "
                "accepts that"
            )
        if before is None:
            continue
        drop = before - now
        drops.append(drop)
        if drop > limit + ROUNDING:
            beyond.append(
                f"{name} from {before:g} dB to {now:g} dB, {drop:.1f} dB less"
            )
    fall = listed(beyond, MOST)
    sentence = f"SQNR dropped since the baseline: {fall}; at most {limit:g} dB allowed"
    worst = max(drops, default=0.0)
    return (
        worst if math.isfinite(worst) else None
    ), sentence  # records can't hold infinities


GATE = Gate(
    name="max_sqnr_drop",
    holds_for=("method",),
    values=Annotated[float, Field(ge=0, allow_inf_nan=False)],
    unit="dB",
    text="The maximum drop in any output's SQNR since the baseline, in dB.",
    example="3",
    measure=measure,
    needs_baseline=True,
    needs_run=True,
)
