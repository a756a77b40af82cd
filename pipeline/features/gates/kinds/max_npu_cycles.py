"""The cycles that an NPU's compiler estimates for a method."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.features.gates.estimates import (
    describe_largest,
    find_estimates,
    name_tools,
)
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: int) -> Measured:
    estimates, missing = find_estimates(method, "max_npu_cycles")
    if missing:
        return None, missing
    cycles = sum(estimate["cycles"] for estimate in estimates)
    sentence = (
        f"takes {cycles:,} cycles according to {name_tools(estimates)}, at most "
        f"{limit:,} allowed"
    )
    return cycles, sentence + describe_largest(estimates, "cycles")


GATE = Gate(
    name="max_npu_cycles",
    holds_for=("method",),
    values=Annotated[int, Field(ge=1)],
    unit="cycles",
    text=(
        "The maximum number of cycles that the NPU's compiler estimates for one call of a "
        "method, over all its delegates and including waits for memory; vela makes this estimate "
        "for Ethos-U."
    ),
    example="2000000",
    measure=measure,
    needs_partitioners=True,
)
