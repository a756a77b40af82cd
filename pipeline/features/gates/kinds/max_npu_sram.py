"""The SRAM that an NPU's compiler estimates for a method."""

from __future__ import annotations

from pipeline.config.fields import Size
from pipeline.features.gates.estimates import (
    describe_largest,
    find_estimates,
    name_tools,
)
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: int) -> Measured:
    estimates, missing = find_estimates(method, "max_npu_sram")
    if missing:
        return None, missing
    sram = max(estimate["sram"] for estimate in estimates)
    sentence = f"uses {sram:,} bytes of SRAM according to {name_tools(estimates)}"
    return (
        sram,
        f"{sentence}, at most {limit:,} allowed{describe_largest(estimates, 'sram')}",
    )


GATE = Gate(
    name="max_npu_sram",
    holds_for=("method",),
    values=Size,
    unit="bytes",
    text=(
        "The maximum SRAM that the NPU's compiler estimates for any delegate of a method, such "
        "as 256KiB; vela makes this estimate for Ethos-U."
    ),
    example="256KiB",
    measure=measure,
    needs_partitioners=True,
)
