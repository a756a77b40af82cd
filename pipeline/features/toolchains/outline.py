"""The form of the field that this feature adds to reports."""

from __future__ import annotations

RUNS_IN = (
    dict[str, str],
    "By runtime, such as `1.5.1 (et15)`, whether the package runs there: `yes`, or `no` and why.",
)
