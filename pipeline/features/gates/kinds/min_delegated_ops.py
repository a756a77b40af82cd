"""The share of a method's operators that delegates run."""

from __future__ import annotations

from pipeline.config.fields import Share
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import measure_delegated


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_delegated(method, "operators", limit)


GATE = Gate(
    name="min_delegated_ops",
    holds_for=("method",),
    values=Share,
    unit="share",
    text="The least share of each method's operators that delegates run, 0 to 1.",
    example="0.9",
    measure=measure,
    needs_partitioners=True,
)
