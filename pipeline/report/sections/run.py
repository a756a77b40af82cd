"""The last run: its actions by worker and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor, log10

from pipeline.report import charts
from pipeline.report.cells import figure, name
from pipeline.report.elements import Bar, Cell, DataTable, Json, ReportSection, Row, Timeline
from pipeline.report.events import STAGE, Event, outcome_word
from pipeline.report.formatting import percent
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

_NARROWEST, _LETTER = 280, 8  # pixels: of the axis on a phone, and of a letter
_LAST_TICK = 0.95  # of the axis: the text of a later one would leave the page


def section(timeline: Json | None, pages: Mapping[str, str]) -> ReportSection:
    """Return the section of a run; empty without a timeline.

    Args:
        timeline: what `render.read_timeline` gives.
        pages: links to the pages of packages, to which actions lead.
    """
    events = _read_events(timeline["traceEvents"]) if timeline else []
    if timeline is None or not events:
        return ReportSection("run", "The last run")
    seconds = max(event.end for event in events) - min(event.start for event in events)
    lanes = [event for event in timeline["traceEvents"] if event["ph"] == "M"]
    names = {lane["tid"]: str(lane["args"]["name"]) for lane in lanes}
    return ReportSection(
        "run",
        "The last run",
        f"{plural(len(events), 'action')} in {seconds:.1f} s",
        _timeline(events, seconds, pages, names),
        DataTable("actions", "Actions of the last run", [_row(event, names) for event in events]),
    )


def _read_events(trace: Iterable[Json]) -> list[Event]:
    """Read what workers did from a trace, in which stages follow their action.

    The worker of an event is the number of its lane.
    """
    events: list[Event] = []
    for span in trace:
        if span["ph"] != "X":
            continue
        start, seconds = span["ts"] / 1e6, span["dur"] / 1e6
        if span["cat"] == STAGE:
            since = start - events[-1].start
            stages = [*events[-1].stages, (span["name"], since, since + seconds)]
            events[-1] = events[-1]._replace(stages=stages)
        else:
            facts = {"package": None, "method": None, "model": ""} | span["args"]
            times = {"start": start, "seconds": seconds, "worker": span["tid"]}
            events.append(Event(**(facts | times)))
    return events


def _timeline(
    events: Sequence[Event], seconds: float, pages: Mapping[str, str], names: Mapping[int, str]
) -> Timeline:
    first = min(event.start for event in events)
    whole = seconds or 1.0
    lanes: dict[str, list[Bar]] = {}
    for worker in sorted({event.worker for event in events}):
        worker_events = [event for event in events if event.worker == worker]
        lanes[names.get(worker, f"worker {worker}")] = [
            Bar(
                (event.start - first) / whole,
                event.seconds / whole,
                event.name if _fits(event.name, event.seconds / whole) else "",
                charts.colour_of(event.kind),
                f"{event.title}: {event.seconds:.1f} s, {outcome_word(event.outcome)}; "
                f"{_longest_stages(event, 6)}",
                pages.get(event.package or "", ""),
                event.outcome != "failed",
            )
            for event in worker_events
        ]
    busy = sum(event.seconds for event in events)
    share = percent(busy / (seconds * len(lanes)) if seconds else 1.0, 0)
    return Timeline(
        "Workers.",
        f"What each did when; {share} of their time was used. Red edges: failed. Hover or tap for "
        "stages.",
        [(kind, charts.colour_of(kind)) for kind in dict.fromkeys(event.kind for event in events)],
        "Actions of the last run by worker and time",
        lanes,
        list(_ticks(seconds)),
    )


def _fits(name: str, share: float) -> bool:
    """Return whether a name fits in a bar of that share of the narrowest axis."""
    return share * _NARROWEST > _LETTER * len(name) + _LETTER


def _ticks(seconds: float) -> Iterator[tuple[float, str]]:
    """Yield at most five round times within a run, as shares of it."""
    if seconds <= 0:
        return
    decade = 10.0 ** floor(log10(seconds / 4))
    step = next(
        step for step in (decade, 2 * decade, 5 * decade, 10 * decade) if seconds <= 5 * step
    )
    for index in range(int(seconds / step) + 1):
        yield index * step / seconds, f"{index * step:,.10g} s"


def _longest_stages(event: Event, most: int) -> str:
    seconds: dict[str, float] = defaultdict(float)
    for stage, since, until in event.stages:
        seconds[stage] += until - since
    ranked = sorted(seconds.items(), key=lambda stage: (-stage[1], stage[0]))
    return ", ".join(f"{stage} {spent:.1f} s" for stage, spent in ranked[:most] if spent >= 0.05)


def _row(event: Event, names: Mapping[int, str]) -> Row:
    return {
        "action": event.kind,
        "of": name(event.name),
        "outcome": Cell(
            outcome_word(event.outcome), kind="bad" if event.outcome == "failed" else ""
        ),
        "begin": figure(event.start, "{:.1f} s".format),
        "took": figure(event.seconds, "{:.1f} s".format),
        "memory": figure(event.peak_bytes, human_size),
        "worker": Cell(names.get(event.worker, "").removeprefix("worker "), event.worker),
        "longest stages": Cell(_longest_stages(event, 4), kind="wide"),
    }
