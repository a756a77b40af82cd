"""The time that a device takes to load a method."""

from __future__ import annotations

from pipeline.features.gates.by_device import Times, measure_time
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: float) -> Measured:
    return measure_time(method, limit, "load_ms", "load time")


GATE = Gate(
    name="max_load_time",
    holds_for=("method",),
    values=Times,
    unit="ms",
    text=(
        "The maximum time to open the package and load a method, in milliseconds: one limit for "
        "all devices of `validate.devices`, or a limit for each device."
    ),
    example="{native: 50}",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
)
