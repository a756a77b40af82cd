"""The time that a method takes, as a multiple of its source's time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: float) -> Measured:
    latency = method.run.get("latency")
    if not latency:
        return None, "its latency was not measured, and max_latency_ratio limits it"
    ratio = latency["ratio"]
    ours, source = (latency[name]["median"] for name in ("steady_ms", "source_ms"))
    what = f"takes {ratio:.2f} times as long as its source ({ours:.3g} ms against {source:.3g} ms)"
    return ratio, f"{what}, at most {limit:g} times allowed"


GATE = Gate(
    name="max_latency_ratio",
    holds_for=("method",),
    values=Annotated[float, Field(gt=0, allow_inf_nan=False)],
    unit="times",
    text=(
        "The maximum steady-state latency of a method on the validating machine, as a multiple of "
        "the source program's latency."
    ),
    example="1.5",
    measure=measure,
    needs_feature="latency",
    needs_run=True,
    is_timed=True,
)
