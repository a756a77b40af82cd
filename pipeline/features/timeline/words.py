"""Describes what bounded a run: the longest chain of actions and the idle time of workers.

Both come from `timeline.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report.formatting import duration, percent
from pipeline.store.errors import plural
from pipeline.store.forms import check_of

_MENTIONED = 1.0  # seconds; shorter waits are not mentioned
_is_schedule = check_of(
    {
        "seconds": float,
        "workers": int,
        "idle": float,
        "idle_while_ready": float,
        "chain": [{"action": str, "seconds": float, "waited": float}],
    },
    open_fields=True,
)


def find_schedule(
    timeline: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], list[str]] | None:
    """Return the schedule in a timeline, and sentences about it, or None if it has none."""
    schedule = read_schedule(timeline)
    if schedule is None:
        return None
    return schedule, list(describe_schedule(schedule))


def read_schedule(timeline: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the schedule in a timeline, or None if it has none."""
    schedule: Any = (timeline or {}).get("otherData", {}).get("schedule")
    if _is_schedule(schedule):
        return schedule
    return None


def describe_schedule(schedule: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on the longest chain of a run, and one on the idle time of its workers."""
    chain = schedule["chain"]
    whole = schedule["seconds"]
    links: list[str] = []
    for action in chain:
        words = f"{action['action']} {duration(action['seconds'])}"
        if action["waited"] >= _MENTIONED:
            words += f" (waited {duration(action['waited'])})"
        links.append(words)
    worked = sum(action["seconds"] for action in chain)
    yield (
        f"Longest chain: {', '.join(links)}: {duration(worked)} of {duration(whole)}, more "
        "workers would not shorten this chain"
    )
    workers = schedule["workers"]
    total = whole * workers
    yield (
        f"{plural(workers, 'worker')}: idle for {duration(schedule['idle'])} of "
        f"{duration(total)} ({percent(schedule['idle'] / (total or 1), 0)}), "
        f"{duration(schedule['idle_while_ready'])} of it while an action was ready"
    )
