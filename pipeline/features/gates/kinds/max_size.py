"""The size of a package's files."""

from __future__ import annotations

from pipeline.config.fields import Size
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import describe_growth


def measure(package: GateSubject, limit: int) -> Measured:
    size = package.now["size"]
    if package.before is not None:
        more = describe_growth(package) or "no part of it grew since the baseline"
    else:
        parts = sorted(package.now["segments"].items(), key=lambda pair: -pair[1])
        more = ", ".join(f"{kind} {n:,}" for kind, n in parts)
    return size, f"the package has {size:,} bytes, at most {limit:,} allowed; {more}"


GATE = Gate(
    name="max_size",
    holds_for=("package",),
    values=Size,
    unit="bytes",
    text="The maximum size of the package's files, such as 40MB or 512KiB.",
    example="40MB",
    measure=measure,
)
