"""The page over all packages: which failed, their figures side by side, and what the last run did
when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from pipeline.report import formatting as figures
from pipeline.report import worst
from pipeline.report.charts import specs as charts
from pipeline.report.charts.colours import of_action
from pipeline.report.charts.draw import Chart, chart
from pipeline.report.entries import Entry, ordered, verdict
from pipeline.report.html import tables
from pipeline.report.html.tables import Cell, Table
from pipeline.report.html.templating import page

Json = Mapping[str, Any]

_STAGE, _MICROSECONDS = "stage", 1e6


class _Action(NamedTuple):
    """Of a timeline: seconds from the run's begin."""

    kind: str
    name: str
    package: str
    lane: int
    start: float
    end: float
    outcome: str
    stages: Sequence[tuple[str, float]]
    peak_bytes: int


def index_page(entries: Iterable[Entry], timeline: Json | None = None) -> bytes:
    """One self-contained HTML file. Equal arguments give equal bytes.

    Args:
        timeline: of the last run that did something, as `pipeline.report.timeline` writes it.
    """
    entries = ordered(entries)
    actions = list(_actions(timeline)) if timeline else []
    return page(
        "index.html.j2",
        ok=not any(entry.failed for entry in entries),
        verdict=verdict(entries),
        failures=[
            (entry.package, _href(entry), entry.failures) for entry in entries if entry.failed
        ],
        packages=_packages(entries),
        timeline=_timeline(actions, {entry.package: _href(entry) for entry in entries}),
        actions=_table_of(actions),
        told=_told(actions),
    )


def _href(entry: Entry) -> str:
    return f"{quote(entry.package)}/report.html" if entry.report is not None else ""


def _packages(entries: Sequence[Entry]) -> Table:
    head = (
        "package",
        "verdict",
        "target",
        "size",
        "nodes delegated",
        "worst SQNR",
        "max error",
        "gates",
        "methods",
    )
    rows = [_row(entry) for entry in entries]
    return tables.table("packages", "Packages", head, rows, range(3, len(head)))


def _row(entry: Entry) -> Sequence[Cell]:
    kind = "bad" if entry.failed else "good" if entry.report is not None else "soft"
    name = Cell(entry.package, href=_href(entry), kind="name")
    report = entry.report
    nothing = Cell(figures.NOTHING, figures.number(None), kind="soft")
    if report is None:
        return [name, Cell(entry.outcome, kind=kind), Cell(figures.NOTHING), *[nothing] * 6]
    size, share = worst.size(report), worst.delegated(report)
    sqnr, error = worst.worst_sqnr(report), worst.greatest_error(report)
    gates = report.get("gates") or ()
    met = sum(gate["ok"] for gate in gates)
    return [
        name,
        Cell(entry.outcome, kind=kind),
        Cell(str(report.get("target") or figures.NOTHING), kind="whole"),
        tables.figure(size, figures.size(size)),
        nothing if share is None else Cell(figures.percent(share), share, bar=share),
        tables.figure(sqnr, figures.decibel(sqnr)),
        tables.figure(error, figures.error(error)),
        Cell(f"{met} of {len(gates)}", len(gates) - met, kind="" if met == len(gates) else "bad")
        if gates
        else nothing,
        Cell(str(len(report["methods"])), len(report["methods"])),
    ]


# The timeline


def _actions(timeline: Json) -> Iterator[_Action]:
    """What workers did, in the order of its begin, each with its stages."""
    events = timeline["traceEvents"]
    stages: dict[int, list[tuple[str, float, float]]] = {}
    for event in events:
        if event.get("cat") == _STAGE:
            start, end = _times(event)
            stages.setdefault(event["tid"], []).append((event["name"], start, end))
    for event in events:
        if event["ph"] != "X" or event.get("cat") == _STAGE:
            continue
        start, end = _times(event)
        own = [
            (name, until - since)
            for name, since, until in stages.get(event["tid"], ())
            if start <= since and until <= end + 1e-3
        ]
        told = event["args"]
        yield _Action(
            kind=event["cat"],
            name=event["name"].partition(" ")[2],
            package=told.get("package", ""),
            lane=event["tid"],
            start=start,
            end=end,
            outcome=told["outcome"],
            stages=own,
            peak_bytes=told.get("peak_bytes", 0),
        )


def _times(event: Json) -> tuple[float, float]:
    return event["ts"] / _MICROSECONDS, (event["ts"] + event["dur"]) / _MICROSECONDS


def _timeline(actions: Sequence[_Action], pages: Mapping[str, str]) -> Chart | None:
    """`pages` are those of packages, empty where there is none; actions lead there."""
    if not actions:
        return None
    lanes = sorted({action.lane for action in actions})
    values = [
        {
            "lane": lanes.index(action.lane),
            "start": action.start,
            "end": action.end,
            "kind": action.kind,
            "name": action.name,
            "ok": action.outcome != "failed",
            "told": f"{action.kind} {action.name}: {action.end - action.start:.1f} s, "
            f"{action.outcome}; {_stages(action)}",
        }
        for action in actions
    ]
    links = {
        str(value["told"]): href
        for value, action in zip(values, actions, strict=True)
        if (href := pages.get(action.package))
    }
    names = [f"worker {lane}" for lane in lanes]
    kinds = dict.fromkeys(action.kind for action in actions)
    busy = sum(action.end - action.start for action in actions)
    whole = max(action.end for action in actions) - min(action.start for action in actions)
    share = busy / (whole * len(lanes)) if whole else 1.0
    return chart(
        "Workers.",
        f"What each did when; {figures.percent(share, 0)} of their time was used. Red edges: "
        "failed. Hover for stages.",
        [(kind, of_action(kind)) for kind in kinds],
        "Actions of the last run by worker and time",
        partial(charts.timeline, values, names),
        links,
    )


def _stages(action: _Action, most: int = 6) -> str:
    """The longest first."""
    seconds: dict[str, float] = {}
    for name, spent in action.stages:
        seconds[name] = seconds.get(name, 0.0) + spent
    known = ((name, spent) for name, spent in seconds.items() if spent >= 0.05)
    ranked = sorted(known, key=lambda stage: (-stage[1], stage[0]))
    return ", ".join(f"{name} {spent:.1f} s" for name, spent in ranked[:most])


def _table_of(actions: Sequence[_Action]) -> Table:
    rows = [
        (
            Cell(action.kind),
            Cell(action.name, kind="name"),
            Cell(action.outcome, kind="bad" if action.outcome == "failed" else ""),
            Cell(f"{action.start:.1f} s", action.start),
            Cell(f"{action.end - action.start:.1f} s", action.end - action.start),
            Cell(figures.size(action.peak_bytes), action.peak_bytes),
            Cell(str(action.lane), action.lane),
            Cell(_stages(action, 4), kind="wide"),
        )
        for action in actions
    ]
    head = ("action", "of", "outcome", "begin", "took", "memory", "worker", "longest stages")
    return tables.table("actions", "Actions of the last run", head, rows, range(3, 7))


def _told(actions: Sequence[_Action]) -> str:
    if not actions:
        return ""
    spent = max(action.end for action in actions) - min(action.start for action in actions)
    return f"{figures.count(len(actions), 'action')} in {spent:.1f} s"
