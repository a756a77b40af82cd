"""The time within which 95 % of calls end on a device."""

from __future__ import annotations

from pipeline.features.gates.by_device import Times, measure_time
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_time(method, limit, "p95_ms", "95 % latency")


GATE = Gate(
    name="max_latency_p95",
    holds_for=("method",),
    values=Times,
    unit="ms",
    text=(
        "The maximum 95th percentile of call times after the warm-up, in milliseconds: one limit "
        "for all devices of `validate.devices`, or a limit for each device."
    ),
    example="{native: 25}",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
)
