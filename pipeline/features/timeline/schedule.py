"""Finds what made a run take as long as it did: its longest chain of actions, and idle workers.

Events don't name their inputs, but kinds and names imply them: a package is linked from its
methods, and a method is compiled from the export of its model. A result that packages share through
the store bears the name of one of them, so a real chain may be longer than the one found here, but
never shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.report.events import Event

# For each kind of action, the kinds of the actions whose results it takes.
_INPUTS = {
    "quantize": ("export",),
    "compile": ("export", "quantize"),
    "link": ("compile",),
    "validate": ("link",),
}


def describe_schedule(
    events: Sequence[Event], workers: int
) -> tuple[dict[str, Any], list[Event]]:
    """Return what made a run take as long as it did, as JSON, and the events of its longest chain.

    The record has the run's wall time in seconds (`seconds`), the number of `workers`, their idle
    time in worker-seconds (`idle`), the part of it in which an action was ready
    (`idle_while_ready`), and the longest chain: for each action its `seconds`, and how long it was
    ready before it began (`waited`).

    Args:
        events: the actions of workers, each with a start.
        workers: the greatest number of workers at a time.
    """
    events = sorted(events, key=lambda event: (event.start, event.title))
    inputs = list(_find_inputs(events))
    begin = events[0].start
    end = max(event.end for event in events)
    ready: list[float] = []
    for event, numbers in zip(events, inputs, strict=True):
        ends = [events[number].end for number in numbers]
        ready.append(max(ends, default=_ready_without_inputs(event, begin)))
    busy = sum(event.seconds for event in events)
    chain = _find_longest_chain(events, inputs)
    actions: list[dict[str, Any]] = []
    for number in chain:
        event = events[number]
        actions.append(
            {
                "action": event.title,
                "seconds": round(event.seconds, 3),
                "waited": round(event.start - ready[number], 3),
            }
        )
    schedule = {
        "seconds": round(end - begin, 3),
        "workers": workers,
        "idle": round(max(0.0, workers * (end - begin) - busy), 3),
        "idle_while_ready": round(_count_idle_while_ready(events, ready, workers), 3),
        "chain": actions,
    }
    return schedule, [events[number] for number in chain]


def _find_inputs(events: Sequence[Event]) -> Iterator[list[int]]:
    """Yield, for each event, the indices of the events whose results it took."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, event in enumerate(events):
        place = event.package or event.model
        numbers.setdefault((event.kind, place), []).append(number)
    for event in events:
        sources: list[int] = []
        for kind in _INPUTS.get(event.kind, ()):
            place = event.model if kind == "export" else str(event.package)
            for number in numbers.get((kind, place), ()):
                is_input = kind != "quantize" or _shares_method(event, events[number])
                if is_input and events[number].end <= event.start:
                    sources.append(number)
        yield sources


def _shares_method(event: Event, source: Event) -> bool:
    """Return whether `source` concerns one of the methods of `event`.

    The names of methods that are compiled together are joined by plus signs.
    """
    return str(source.method) in str(event.method).split("+")


def _ready_without_inputs(event: Event, begin: float) -> float:
    """Return when an action could have begun if no worker made its inputs in this run.

    This is the beginning of the run, except for a link or validation: its inputs may bear another
    package's name, so it is assumed not to have waited.
    """
    if event.kind in ("link", "validate"):
        return event.start
    return begin


def _find_longest_chain(
    events: Sequence[Event], inputs: Sequence[Sequence[int]]
) -> list[int]:
    """Return the indices of the events of the longest chain, in order."""
    totals: list[float] = []
    sources: list[int | None] = []
    for event, numbers in zip(events, inputs, strict=True):
        source = max(numbers, key=lambda number: totals[number], default=None)
        sources.append(source)
        before = 0.0
        if source is not None:
            before = totals[source]
        totals.append(before + event.seconds)
    number: int | None = totals.index(max(totals))
    chain: list[int] = []
    while number is not None:
        chain.append(number)
        number = sources[number]
    return chain[::-1]


def _count_idle_while_ready(
    events: Sequence[Event], ready: Sequence[float], workers: int
) -> float:
    """Return the worker-seconds in which an action was ready while a worker was idle."""
    # Changes in the numbers of waiting and of running actions, by time.
    waiting: Counter[float] = Counter()
    running: Counter[float] = Counter()
    for event, since in zip(events, ready, strict=True):
        waiting[since] += 1
        waiting[event.start] -= 1
        running[event.start] += 1
        running[event.end] -= 1
    seconds = 0.0
    ready_now = busy_now = 0
    last = 0.0
    for moment in sorted({*waiting, *running}):
        idle = max(0, workers - busy_now)
        seconds += min(ready_now, idle) * (moment - last)
        ready_now += waiting[moment]
        busy_now += running[moment]
        last = moment
    return seconds
