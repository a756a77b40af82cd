"""The median time of a call on a device."""

from __future__ import annotations

from pipeline.features.gates.by_device import Times, measure_time
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_time(method, limit, "run_ms", "median latency")


GATE = Gate(
    name="max_latency",
    holds_for=("method",),
    values=Times,
    unit="ms",
    text=(
        "The maximum median time of a call after the warm-up, in milliseconds: one limit for all "
        "devices of `validate.devices`, or a limit for each device."
    ),
    example="{native: 20, pi5: 35}",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
)
