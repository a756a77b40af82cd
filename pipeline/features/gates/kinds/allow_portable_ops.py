"""The operators that may be left to portable kernels."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pipeline.config.fields import Operators
from pipeline.features.gates.gate import Gate, GateSubject, Measured
from pipeline.features.gates.wording import describe_calls, describe_newly_left
from pipeline.report.records import name_kernels


def measure(method: GateSubject, allowed: Iterable[str]) -> Measured:
    patterns = [pattern.removesuffix(".default") for pattern in allowed]
    refused = {}
    for name, calls in method.now["left"].items():
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            refused[name] = calls
    permitted = "none may be"
    if patterns:
        permitted = f"only {', '.join(patterns)} may be"
    newly = describe_newly_left(method, "since the baseline", reasons=False)
    kernels = name_kernels(method.now["left"])
    words = describe_calls(method, refused)
    return sum(
        refused.values()
    ), f"left to {kernels}, where {permitted}: {words}{newly}"


GATE = Gate(
    name="allow_portable_ops",
    holds_for=("method",),
    values=Operators,
    unit="calls",
    text=(
        "The operators that may be left to portable kernels, by name, such as aten.view_copy, or "
        "by pattern, such as aten.*_copy.*. All other operators must be delegated; [] allows none."
    ),
    example="[aten.view_copy, aten.*_copy.*]",
    measure=measure,
    needs_partitioners=True,
)
