"""What a run did when, and in which worker: `build/timeline.json`, in the Trace Event format that
Perfetto (https://ui.perfetto.dev) and chrome://tracing open too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

TIMELINE = "timeline.json"
_PROCESS = 1  # Trace events belong to processes and their threads: here the run, and its lanes.
_STORE = 0  # the lane of what came from the store; workers have the others, from 1


class Span(NamedTuple):
    """An action in a worker, the process `worker`. Times are seconds of the clock; `stages` have
    their names, begins and ends. `outcome` is "built", "hit" (another run had done it), "failed",
    or "lost" (done again, since something that it needs was gone)."""

    kind: str
    package: str | None
    method: str | None
    model: str
    outcome: str
    worker: int
    start: float
    end: float
    stages: Sequence[tuple[str, float, float]] = ()
    peak_bytes: int = 0
    error: str = ""

    @property
    def name(self) -> str:
        return "/".join(part for part in (self.package or self.model, self.method) if part)


class Hit(NamedTuple):
    """An action whose result the driver found in the store, at `time`."""

    kind: str
    package: str | None
    method: str | None
    model: str
    time: float

    @property
    def name(self) -> str:
        return "/".join(part for part in (self.package or self.model, self.method) if part)


def trace(spans: Sequence[Span], hits: Sequence[Hit]) -> dict[str, Any]:
    """The events of a run, whose time begins with the first of them. In microseconds."""
    begin = min([*(span.start for span in spans), *(hit.time for hit in hits)], default=0.0)
    lanes = _lanes(spans)
    events: list[dict[str, Any]] = [
        {**_of_lane(lane), "ph": "M", "name": "thread_name", "args": {"name": name}}
        for lane, name in enumerate(["store", *(f"worker {n + 1}" for n in range(_count(lanes)))])
        if lane != _STORE or hits
    ]

    def when(time: float) -> int:
        return round((time - begin) * 1e6)

    for hit in sorted(hits, key=lambda hit: (hit.time, hit.kind, hit.name)):
        head = {"name": f"{hit.kind} {hit.name}", "cat": hit.kind, **_of_lane(_STORE)}
        args = _named(hit) | {"outcome": "hit"}
        events.append({**head, "ph": "i", "s": "t", "ts": when(hit.time), "args": args})
    for span in sorted(spans, key=lambda span: (span.start, span.worker)):
        lane = _of_lane(lanes[span.worker])
        told = {"outcome": span.outcome, "peak_bytes": span.peak_bytes, "error": span.error}
        args = _named(span) | {name: value for name, value in told.items() if value}
        events.append(
            {
                "name": f"{span.kind} {span.name}",
                "cat": span.kind,
                **lane,
                **_lasting(when(span.start), when(span.end)),
                "args": args,
            }
        )
        events += [
            {"name": name, "cat": "stage", **lane, **_lasting(when(start), when(end))}
            for name, start, end in span.stages
        ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(of: Span | Hit) -> dict[str, Any]:
    names = {"package": of.package, "method": of.method, "model": of.model}
    return {"kind": of.kind} | {name: value for name, value in names.items() if value}


def _of_lane(lane: int) -> dict[str, int]:
    return {"pid": _PROCESS, "tid": lane}


def _lasting(start: int, end: int) -> dict[str, Any]:
    return {"ph": "X", "ts": start, "dur": max(end - start, 0)}


def _lanes(spans: Iterable[Span]) -> dict[int, int]:
    """A lane for each worker, from 1. One that began when another had ended takes its lane, as
    joblib replaces workers that died or grew too large."""
    lives: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, end = lives.get(span.worker, (span.start, span.end))
        lives[span.worker] = min(start, span.start), max(end, span.end)
    free: list[float] = []
    lanes: dict[int, int] = {}
    for worker, (start, end) in sorted(lives.items(), key=lambda life: (life[1], life[0])):
        lane = next((lane for lane, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        lanes[worker] = lane + 1
    return lanes


def _count(lanes: Mapping[int, int]) -> int:
    return max(lanes.values(), default=0)


def write_timeline(workspace: Workspace, spans: Sequence[Span], hits: Sequence[Hit]) -> None:
    """An event a line. Raises OSError."""
    written = trace(spans, hits)
    lines = ",\n".join(json.dumps(event) for event in written["traceEvents"])
    told = f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'
    write_atomically(workspace.build / TIMELINE, told.encode())


def read_timeline(workspace: Workspace) -> dict[str, Any] | None:
    """None where there is none that can be read."""
    try:
        found = json.loads((workspace.build / TIMELINE).read_bytes())
        return found if isinstance(found.get("traceEvents"), list) else None
    except (OSError, ValueError, AttributeError):
        return None
