"""The shape of the latency fields in a method's record."""

from __future__ import annotations

_SPREAD = (
    {"median": float, "low": float, "high": float, "runs": int},
    "The median and quartiles of `runs` runs, in milliseconds of wall time.",
)
LATENCY = (
    {
        "load_ms": _SPREAD,
        "first_ms": float,
        "steady_ms": _SPREAD,
        "source_ms": _SPREAD,
        "ratio": (float, "The ratio of the medians of `steady_ms` and `source_ms`."),
    },
    None,
    "Latency on the host: loading, the first call, later calls, and the same calls of the source",
    "program in eager mode.",
)
