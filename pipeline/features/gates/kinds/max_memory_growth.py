"""The growth of a method's memory since the accepted package, on each device."""

from __future__ import annotations

from pipeline.features.gates.by_device import Portions, measure_growth
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_growth(method, limit, "memory")


GATE = Gate(
    name="max_memory_growth",
    holds_for=("method",),
    values=Portions,
    unit="share",
    text=(
        "The maximum growth of peak memory since the baseline, such as 0.05 or 5%; the package "
        "and the one that the baseline was recorded from take turns on the same device."
    ),
    example="0.05",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
    needs_baseline=True,
)
