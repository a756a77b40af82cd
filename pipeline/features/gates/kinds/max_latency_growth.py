"""The growth of a method's latency since the accepted package, on each device."""

from __future__ import annotations

from pipeline.features.gates.by_device import Portions, measure_growth
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_growth(method, limit, "latency")


GATE = Gate(
    name="max_latency_growth",
    holds_for=("method",),
    values=Portions,
    unit="share",
    text=(
        "The maximum slowdown of calls since the baseline, such as 0.1 or 10%; the package and "
        "the one that the baseline was recorded from take turns on the same device. The gate "
        "compares this limit with the lower end of the 95 % confidence interval over pairs of "
        "calls."
    ),
    example="0.1",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
    needs_baseline=True,
)
