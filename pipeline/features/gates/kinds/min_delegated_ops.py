"""The share of a method's distinct operators that only delegates run."""

from __future__ import annotations

from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.shares import DelegatedShare
from pipeline.features.gates.wording import measure_delegated


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_delegated(method, "operators", limit)


GATE = Gate(
    name="min_delegated_ops",
    holds_for=("method",),
    values=DelegatedShare,
    unit="share",
    text=(
        "The minimum share of each method's distinct operators that only delegates run: 0.9 or 90%."
    ),
    example="0.9",
    measure=measure,
    needs_partitioners=True,
)
