"""Events of a run: one record an action, written to `build/run.json` and `build/timeline.json`.

Every run imports this module, also one with nothing to do, so it imports nothing heavy. The
timeline is in the Trace Event format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing
open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pipeline.moments import find_code
from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

RUN, TIMELINE = "run.json", "timeline.json"
STAGE = "stage"  # the category of a trace event that is a stage of an action
Outcome = Literal["built", "refit", "hit", "up-to-date", "failed", "not-run", "lost"]
DONE = ("built", "refit", "hit", "up-to-date")  # the outcomes of what is there now
INTERRUPTED = "interrupted"  # the reason of a task that did not run
NOT_BUILT = "not built"  # what people read of a package without its files
# The words in which people read them.
WORDS: Mapping[str, str] = {
    "refit": "refitted",
    "hit": "cached",
    "up-to-date": "current",
    "not-run": "not run",
}

_PROCESS = 1  # Trace events belong to processes and their threads: here the run, and its lanes.
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
NAMES = ("kind", "package", "method", "model")  # of an action
# What people are told of how an action ended.
ENDING = (
    "outcome",
    "reason",
    "seconds",
    "peak_bytes",
    "error",
    "code",
    "log",
    "host",
)


def outcome_word(outcome: str) -> str:
    """Return the word in which people read an outcome: built, refitted, cached, current, failed."""
    return WORDS.get(outcome, outcome)


class Event(NamedTuple):
    """One action of a run and its outcome.

    `outcome` is "lost" where an input disappeared from the store, so that the action runs again.
    `start` is in seconds of the clock, 0 for an action that took no time; `seconds` is wall time.
    `stages` are names with begin and end in seconds from `start`; `stage` is the last one begun, so
    the one that failed. `worker` is the process that ran the action, 0 where none did.
    `peak_bytes` is the worker's resident memory. `log` is the path of the log in the workspace.
    `host` is the machine of a cluster that ran it, "" for this one. `code` is that of `error`, such
    as `PTE111`.
    """

    kind: str
    package: str | None
    method: str | None
    model: str
    outcome: Outcome
    reason: str = ""
    start: float = 0.0
    seconds: float = 0.0
    stages: Sequence[tuple[str, float, float]] = ()
    stage: str = ""
    worker: int = 0
    peak_bytes: int = 0
    error: str = ""
    log: str = ""
    host: str = ""

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def code(self) -> str:
        return find_code(self.error, self.kind)

    @property
    def name(self) -> str:
        """Return the package or model, with the method if there is one."""
        return "/".join(filter(None, (self.package or self.model, self.method)))

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


def make_event(of: Any, outcome: Outcome, **facts: Any) -> Event:
    """Return an event of an action, or of the task for one."""
    return Event(
        of.kind,
        of.package,
        of.method,
        of.model or "",
        outcome,
        **facts,
    )


def describe_event(
    event: Event, names: Sequence[str] = NAMES + ENDING
) -> dict[str, Any]:
    """Return fields of an event as JSON, by default those of `run.json`."""
    fields = dict(zip(names, attrgetter(*names)(event), strict=True))
    fields["seconds"] = round(event.seconds, 3)
    return fields


def write_run(
    workspace: Workspace, events: Iterable[Event], remote: Mapping[str, Any]
) -> None:
    """Write `run.json`, with an action a line, and what the remote tier was asked.

    Indented JSON would leave the C encoder, which a run with nothing to do would feel, as it would
    a call for each line. Only between two actions does a brace come before a quote that is not
    escaped.

    Raises:
        OSError: the file can't be written.
    """
    actions = [describe_event(event) for event in events]
    lines = json.dumps(actions)[1:-1].replace(
        '}, {"',
        '},\n{"',
    )
    text = f'{{"actions": [\n{lines}\n], "remote": {json.dumps(remote)}}}\n'
    write_atomically(
        workspace.build / RUN,
        text.encode(),
        workspace.build,
    )


def write_timeline(
    workspace: Workspace,
    events: Iterable[Event],
    caches: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write `timeline.json`, with a trace event a line, and what the caches gave.

    Args:
        caches: a `usage.is_caches`, which stands where the format has room for other data.

    Raises:
        OSError: the file can't be written.
    """
    lines = ",\n".join(map(json.dumps, trace(events)["traceEvents"]))
    other = f'"otherData": {json.dumps({"caches": dict(caches)})}, ' if caches else ""
    text = f'{{"displayTimeUnit": "ms", {other}"traceEvents": [\n{lines}\n]}}\n'
    write_atomically(
        workspace.build / TIMELINE,
        text.encode(),
        workspace.build,
    )


def trace(events: Iterable[Event]) -> dict[str, Any]:
    """Return the trace of the events that have a start; its time begins with the first of them.

    An action of a worker is a span with its stages inside; a result found in the store is an
    instant on a lane of its own.
    """
    timed = sorted(
        (event for event in events if event.start),
        key=lambda event: (event.start, event.worker, event.title),
    )
    begin = timed[0].start if timed else 0.0
    lanes = _assign_lanes(timed)
    hosts = {lanes[event.worker]: event.host for event in timed}
    trace_events: list[dict[str, Any]] = []
    for lane, host in sorted(hosts.items()):
        where = f"worker {lane}" + (f" on {host}" if host else "")
        args = {"name": where if lane != _STORE else "store"}
        trace_events.append(
            {
                "pid": _PROCESS,
                "tid": lane,
                "ph": "M",
                "name": "thread_name",
                "args": args,
            }
        )
    for event in timed:
        place = {"pid": _PROCESS, "tid": lanes[event.worker]}
        args = {name: value for name in _ARGUMENTS if (value := getattr(event, name))}
        head = {"name": event.title, "cat": event.kind, **place}
        start = event.start - begin
        if event.worker:
            trace_events.append(
                {**head, **_span(start, start + event.seconds), "args": args}
            )
        else:
            trace_events.append(
                {**head, "ph": "i", "s": "t", "ts": round(start * 1e6), "args": args}
            )
        trace_events += [
            {"name": name, "cat": STAGE, **place, **_span(start + since, start + until)}
            for name, since, until in event.stages
        ]
    return {"displayTimeUnit": "ms", "traceEvents": trace_events}


def _span(start: float, end: float) -> dict[str, Any]:
    since = round(start * 1e6)
    return {
        "ph": "X",
        "ts": since,
        "dur": max(round(end * 1e6) - since, 0),
    }


def _assign_lanes(events: Iterable[Event]) -> dict[int, int]:
    """Assign workers to lanes. A worker that began when another had ended takes its lane, as
    one that died is replaced; on another machine it has one of its own."""
    lives: dict[int, tuple[float, float, str]] = {}
    for event in events:
        start, end, _ = lives.get(
            event.worker,
            (event.start, event.end, ""),
        )
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
