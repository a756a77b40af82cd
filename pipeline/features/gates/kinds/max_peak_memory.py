"""The most memory that a method takes on a device."""

from __future__ import annotations

from pipeline.features.gates.by_device import Sizes, find_device_facts
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: int) -> Measured:
    memory = find_device_facts(method).get("memory")
    if not memory:
        return None, f"{method.device}: its memory was not measured"
    peak = memory.get("peak")
    kind = "peak memory"
    if peak is None:  # an emulator's process mostly measures the emulator
        peak = memory["planned"] + memory["method"] + memory["temporary"]
        kind = "memory that the runtime allocated"
    return (
        peak,
        f"{kind} on {method.device} is {peak:,} bytes, at most {limit:,} allowed",
    )


GATE = Gate(
    name="max_peak_memory",
    holds_for=("method",),
    values=Sizes,
    unit="bytes",
    text=(
        "The maximum peak memory of the process that runs a method or, on emulated processors, "
        "of the runtime's allocations: one limit for all devices of `validate.devices`, or a limit "
        "for each device."
    ),
    example="{native: 60MB}",
    measure=measure,
    needs_feature="native",
    needs_run=True,
    by_device=True,
)
