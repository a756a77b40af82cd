"""The growth of a package since its baseline."""

from __future__ import annotations

from pipeline.config.fields import Portion
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import describe_growth
from pipeline.report.formatting import percent


def measure(package: GateSubject, limit: float) -> Measured:
    size = package.now["size"]
    before = package.before["size"]
    growth = size / before - 1
    sentence = (
        f"the package grew by {percent(growth)} since the baseline, from {before:,}"
    )
    sentence += f" to {size:,} bytes, at most {percent(limit)} allowed"
    return growth, "; ".join(filter(None, (sentence, describe_growth(package))))


GATE = Gate(
    name="max_size_growth",
    holds_for=("package",),
    values=Portion,
    unit="share",
    text="The maximum growth of the package since the baseline, such as 0.02 or 2%.",
    example="2%",
    measure=measure,
    needs_baseline=True,
)
