"""The memory that a method plans."""

from __future__ import annotations

from pipeline.config.fields import Size
from pipeline.features.gates.gate import Gate, GateSubject, Measured


def measure(method: GateSubject, limit: int) -> Measured:
    planned = method.now["planned_memory"]
    if planned is None:
        return None, (
            "its planned memory is unknown, since there is no contents.json; "
            f"`doit -a lower:{method.package}` makes it"
        )
    sentence = f"plans {planned:,} bytes of memory, at most {limit:,} allowed"
    arenas = []
    for a in method.arenas:
        if a["size"]:
            arenas.append(f"arena {a['arena']}: {a['size']:,}")
    if len(arenas) > 1:
        sentence += f"; {', '.join(arenas)}"
    if method.before and method.before["planned_memory"] is not None:
        sentence += f"; {method.before['planned_memory']:,} in the baseline"
    return planned, sentence


GATE = Gate(
    name="max_planned_memory",
    holds_for=("method",),
    values=Size,
    unit="bytes",
    text="The maximum planned memory of a method, over all arenas, such as 2MB.",
    example="2MB",
    measure=measure,
    needs_feature="inspection",
)
