"""How much slower a method is than that of the accepted package, on each device."""

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
        "By which share calls may be slower than those of the baseline's package, which runs in "
        "turns with this one on the same device: the least growth that the pairs of calls allow "
        "with 95 % confidence."
    ),
    example="0.1",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
    needs_baseline=True,
)
