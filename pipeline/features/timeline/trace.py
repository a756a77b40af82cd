"""The trace of a run: the spans of its workers in the Trace Event format.

Perfetto (https://ui.perfetto.dev) and chrome://tracing open it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from pipeline.features.timeline.schedule import describe_schedule
from pipeline.report.events import STAGE, TIMELINE, Event
from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

_PROCESS = 1  # trace events need a process and a thread: here the run and a lane
_STORE = 0  # the lane of results found in the store; workers have lanes from 1
_ARGUMENTS = (
    "kind",
    "package",
    "method",
    "model",
    "outcome",
    "peak_bytes",
    "error",
    "host",
)


def write_timeline(
    workspace: Workspace, events: Iterable[Event], caches: Mapping[str, Any]
) -> None:
    """Write `timeline.json`, with one trace event per line, and the use of the caches.

    Args:
        events: the events of a run that did something.
        caches: a record that passes `usage.is_caches`; it goes to the format's field for other
            data.

    Raises:
        OSError: the file can't be written.
    """
    trace = make_trace(events)
    other = {**trace["otherData"], "caches": dict(caches)}
    lines = ",\n".join(map(json.dumps, trace["traceEvents"]))
    text = (
        f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(other)}, '
        f'"traceEvents": [\n{lines}\n]}}\n'
    )
    write_atomically(workspace.build / TIMELINE, text.encode(), workspace.build)


def make_trace(events: Iterable[Event]) -> dict[str, Any]:
    """Return the trace of the events that have a start; its time begins with the first of them.

    An action of a worker is a span that contains its stages; a result found in the store is an
    instant on a lane of its own. Arrows connect the longest chain of actions, and `otherData` holds
    what bounded the run, in the form that `schedule.describe_schedule` returns.
    """
    timed = sorted(
        (event for event in events if event.start),
        key=lambda event: (event.start, event.worker, event.title),
    )
    begin = 0.0
    if timed:
        begin = timed[0].start
    lanes = _assign_lanes(timed)
    trace_events = _name_lanes(timed, lanes)
    for event in timed:
        trace_events += _draw_event(event, lanes[event.worker], begin)
    worked = [event for event in timed if event.worker]
    other: dict[str, Any] = {}
    if worked:
        other["schedule"], chain = describe_schedule(worked, max(lanes.values()))
        for number, (source, event) in enumerate(pairwise(chain)):
            trace_events += _draw_arrow(number, source, event, lanes, begin)
    return {
        "displayTimeUnit": "ms",
        "otherData": other,
        "traceEvents": trace_events,
    }


def _name_lanes(
    events: Iterable[Event], lanes: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Return the trace events that name each lane after its worker and the worker's machine."""
    hosts = {lanes[event.worker]: event.host for event in events}
    trace_events: list[dict[str, Any]] = []
    for lane, host in sorted(hosts.items()):
        name = "store"
        if lane != _STORE:
            name = f"worker {lane}"
            if host:
                name += f" on {host}"
        trace_events.append(
            {
                "pid": _PROCESS,
                "tid": lane,
                "ph": "M",
                "name": "thread_name",
                "args": {"name": name},
            }
        )
    return trace_events


def _draw_event(event: Event, lane: int, begin: float) -> Iterator[dict[str, Any]]:
    place = {"pid": _PROCESS, "tid": lane}
    facts: dict[str, Any] = {}
    for name in _ARGUMENTS:
        if value := getattr(event, name):
            facts[name] = value
    head = {"name": event.title, "cat": event.kind, **place}
    start = event.start - begin
    if event.worker:
        yield {**head, **_span(start, start + event.seconds), "args": facts}
    else:
        yield {**head, "ph": "i", "s": "t", "ts": round(start * 1e6), "args": facts}
    for name, since, until in event.stages:
        span = _span(start + since, start + until)
        yield {"name": name, "cat": STAGE, **place, **span}


def _draw_arrow(
    number: int, source: Event, event: Event, lanes: Mapping[int, int], begin: float
) -> Iterator[dict[str, Any]]:
    """Yield the two ends of an arrow from one action to the next, each within its action's span."""
    head = {"id": number, "name": "longest chain", "cat": "chain", "pid": _PROCESS}
    end = round((source.end - begin) * 1e6) - 1
    yield {**head, "ph": "s", "tid": lanes[source.worker], "ts": max(end, 0)}
    start = round((event.start - begin) * 1e6)
    yield {**head, "ph": "f", "bp": "e", "tid": lanes[event.worker], "ts": start}


def _span(start: float, end: float) -> dict[str, Any]:
    since = round(start * 1e6)
    return {"ph": "X", "ts": since, "dur": max(round(end * 1e6) - since, 0)}


def _assign_lanes(events: Iterable[Event]) -> dict[int, int]:
    """Assign workers to lanes.

    A worker that began after another had ended, such as the replacement of one that died, takes
    over its lane if both ran on the same machine.
    """
    lives: dict[int, tuple[float, float, str]] = {}
    for event in events:
        start, end, _ = lives.get(event.worker, (event.start, event.end, ""))
        lives[event.worker] = min(start, event.start), max(end, event.end), event.host
    if lives.pop(0, None):
        lanes = {0: _STORE}
    else:
        lanes = {}
    ends: list[tuple[float, str]] = []
    for worker, (start, end, host) in sorted(
        lives.items(), key=lambda life: (life[1], life[0])
    ):
        free = (
            n
            for n, (until, where) in enumerate(ends)
            if until <= start and where == host
        )
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [(end, host)]
        lanes[worker] = lane + 1
    return lanes
