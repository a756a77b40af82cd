"""The section on the last run: its actions by worker and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import floor, log10

from pipeline.moments import call_all
from pipeline.report.cells import figure, name
from pipeline.report.colours import colour_of
from pipeline.report.elements import (
    Cell,
    DataTable,
    Json,
    ReportSection,
    Row,
    Timeline,
)
from pipeline.report.events import STAGE, Event, outcome_word
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

# In pixels: the width of the axis on a phone and on a large screen, and of a letter.
_NARROWEST, _WIDE, _LETTER = 280, 900, 8
_LAST_TICK = 0.95  # of the axis: the label of a later tick would leave the page


def section(timeline: Json | None, pages: Mapping[str, str]) -> ReportSection:
    """Return the section on a run, empty without a timeline.

    Args:
        timeline: content of `timeline.json`, or None.
        pages: links to the pages of packages, which the packages' actions point to.
    """
    if timeline:
        events = _read_events(timeline["traceEvents"])
    else:
        events = []
    if timeline is None or not events:
        return ReportSection("run", "The last run")
    seconds = max(event.end for event in events) - min(event.start for event in events)
    lanes = [event for event in timeline["traceEvents"] if event["ph"] == "M"]
    names = {lane["tid"]: str(lane["args"]["name"]) for lane in lanes}
    sentences: list[str] = []
    chain: set[str] = set()
    if bounds := next(call_all("find_schedule", timeline), None):
        schedule, sentences = bounds
        chain = {action["action"] for action in schedule["chain"]}
    return ReportSection(
        "run",
        "The last run",
        f"{plural(len(events), 'action')} in {seconds:.1f} s",
        *sentences,
        _timeline(events, seconds, pages, names, chain),
        DataTable(
            "actions",
            "Actions of the last run",
            [_row(event, names) for event in events],
        ),
    )


def _read_events(trace: Iterable[Json]) -> list[Event]:
    """Return the workers' actions from a trace, in which stages follow their action.

    The worker of an event is the number of its lane.
    """
    events: list[Event] = []
    for span in trace:
        if span["ph"] != "X":
            continue
        start = span["ts"] / 1e6
        seconds = span["dur"] / 1e6
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
    events: Sequence[Event],
    seconds: float,
    pages: Mapping[str, str],
    names: Mapping[int, str],
    chain: Set[str],
) -> Timeline:
    first = min(event.start for event in events)
    lanes: dict[str, list[Json]] = {}
    for worker in sorted({event.worker for event in events}):
        bars: list[Json] = []
        for event in events:
            if event.worker == worker:
                page = pages.get(event.package or "", "")
                framed = event.title in chain
                bars.append(_bar(event, first, seconds or 1.0, page, framed))
        lanes[names.get(worker, f"worker {worker}")] = bars
    kinds = dict.fromkeys(event.kind for event in events)
    return Timeline(
        "Workers.",
        "Each worker's actions over time. Framed: the longest chain. Red edges: failed. Hover or "
        "tap for stages.",
        [(kind, colour_of(kind)) for kind in kinds],
        "Actions of the last run by worker and time",
        lanes,
        list(_ticks(seconds)),
    )


def _bar(event: Event, first: float, whole: float, page: str, framed: bool) -> Json:
    length = event.seconds / whole
    outcome = f"{event.seconds:.1f} s, {outcome_word(event.outcome)}"
    return {
        "start": (event.start - first) / whole,
        "length": length,
        "name": event.name if _fits(event.name, length, _WIDE) else "",
        "colour": colour_of(event.kind),
        "description": f"{event.title}: {outcome}; {_longest_stages(event, 6)}",
        "href": page,
        "ok": event.outcome != "failed",
        "framed": framed,
        "wide_only": not _fits(event.name, length, _NARROWEST),
    }


def _fits(name: str, share: float, width: int) -> bool:
    """Return whether a name fits in a bar that takes this share of an axis of `width` pixels."""
    return share * width > _LETTER * len(name) + _LETTER


def _ticks(seconds: float) -> Iterator[tuple[float, str]]:
    """Yield at most five round times within a run, each as a share of the run and a label."""
    if seconds <= 0:
        return
    step = 10.0 ** floor(log10(seconds / 4))
    for factor in (2.0, 2.5, 2.0):  # 1, 2, 5 and 10
        if seconds > 5 * step:
            step *= factor
    for index in range(int(seconds / step) + 1):
        yield index * step / seconds, f"{index * step:,.10g} s"


def _longest_stages(event: Event, most: int) -> str:
    durations: dict[str, float] = defaultdict(float)
    for stage, begin, end in event.stages:
        durations[stage] += end - begin
    ranked = sorted(durations.items(), key=lambda entry: (-entry[1], entry[0]))
    words: list[str] = []
    for stage, seconds in ranked[:most]:
        if seconds >= 0.05:
            words.append(f"{stage} {seconds:.1f} s")
    return ", ".join(words)


def _row(event: Event, names: Mapping[int, str]) -> Row:
    worker = names.get(event.worker, "").removeprefix("worker ")
    kind = ""
    if event.outcome == "failed":
        kind = "bad"
    return {
        "action": event.kind,
        "of": name(event.name),
        "outcome": Cell(outcome_word(event.outcome), kind=kind),
        "begin": figure(event.start, "{:.1f} s".format),
        "took": figure(event.seconds, "{:.1f} s".format),
        "memory": figure(event.peak_bytes, human_size),
        "worker": Cell(worker, event.worker),
        "longest stages": Cell(_longest_stages(event, 4), kind="wide"),
    }
