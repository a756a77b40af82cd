"""Gates, and the figures of the accepted baseline beside those of now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.report.cells import code, figure, name, source, verdict
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import decibel, milliseconds, percent, short
from pipeline.report.packages import Entry
from pipeline.report.records import MOST_SQNR, delegated_share, in_order, is_unchecked
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

_STEP = 1.1  # times a ratio of latencies, from which on it is another one
_WORDS = {"bad": "worse", "good": "better"}
_LEFT_ALONE = {"no partitioners": "does not apply", "no baseline": "no baseline yet"}
_UNITS: dict[str, Callable[[Any], str]] = {
    "share": percent,
    "bytes": human_size,
    "times": "{:.2f} ×".format,
    "dB": decibel,
    "cycles": "{:,}".format,
}


def section(report: Json) -> ReportSection:
    order = {each["method"]: place for place, each in enumerate(report["methods"], 1)}
    found = report.get("gates") or ()
    ranked = sorted(found, key=lambda gate: (gate["ok"], order.get(gate["method"], 0)))
    gates = [_gate(gate) for gate in ranked]
    compared = list(compare(report))
    return ReportSection(
        "gates",
        "Gates" if gates else "Against the baseline",
        DataTable("gates", "Limits that the config sets", gates),
        DataTable("baseline", "Against the accepted baseline", compared),
    )


def _gate(gate: Json) -> Row:
    style = _UNITS.get(gate.get("unit", ""), short)
    bound = "at least" if gate["gate"].startswith("min") else "at most"
    unchecked = _LEFT_ALONE.get(gate.get("left_alone", ""), "not checked")
    return {
        "gate": code(gate["gate"]),
        "verdict": verdict(gate["ok"], unchecked if is_unchecked(gate) else ""),
        "of": gate["method"] or "package",
        "figure": figure(gate["figure"], style),
        "limit": figure(gate["limit"], lambda limit: f"{bound} {style(limit)}"),
        "note": Cell(gate["sentence"], kind="wide") if gate["sentence"] else "",
        "set in": source(gate.get("place")),
    }


def find_changes(report: Json) -> DataTable:
    """Return the table of the figures that are not those of the accepted baseline."""
    rows = [row for row in compare(report) if is_change(row)]
    return DataTable("changes", "Changed", rows)


def changes_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section of what changed since the accepted baselines, what is worse first."""
    reports = [(entry, entry.report) for entry in entries if entry.report is not None]
    accepted = [(entry, report) for entry, report in reports if report.get("baseline")]
    rows = [
        {"package": name(entry.package, href=entry.page), **row}
        for entry, report in accepted
        for row in compare(report)
        if is_change(row)
    ]
    rows.sort(key=lambda row: not is_worse(row))
    equal = f"No figure of {plural(len(accepted), 'package')} with a baseline changed."
    return ReportSection(
        "changes",
        "What changed since the baseline",
        DataTable("changes", "Changes, the worse ones first", rows),
        equal if accepted and not rows else None,
    )


def is_change(row: Row) -> bool:
    """Return whether a row of `compare` is of a figure that changed."""
    cell = row["change"]
    return isinstance(cell, Cell) and bool(cell.kind)


def is_worse(row: Row) -> bool:
    """Return whether a row of `compare` is of a figure that is worse."""
    cell = row["change"]
    return isinstance(cell, Cell) and cell.kind == "bad"


def compare(report: Json) -> Iterator[Row]:
    """Yield a row for each figure of the accepted baseline, with that of now."""
    baseline = report.get("baseline") or {}
    contents = report.get("contents") or {}
    if "size" in baseline:
        now = contents.get("size") or sum(report.get("sizes", {}).values())
        yield _change("package", "size", baseline["size"], now, human_size, less_is_better=True)
    decibels = {method["method"]: method["sqnr_db"] for method in report["methods"]}
    latencies = {method["method"]: method.get("latency") for method in report["methods"]}
    for method, then in in_order(report, baseline.get("methods")).items():
        counts = (report.get("delegation") or {}).get(method)
        if counts and "nodes" in then:
            was = delegated_share([then])
            share = delegated_share([counts])
            if was is not None and share is not None:
                yield _change(method, "nodes delegated", was, share, percent)
        arenas = contents.get("methods", {}).get(method)
        if arenas and isinstance(was := then.get("planned_memory"), int):
            now = sum(arena["size"] for arena in arenas["planned_memory"])
            yield _change(method, "planned memory", was, now, human_size, less_is_better=True)
        known = then.get("sqnr_db")
        known = [v for v in (known if isinstance(known, list) else [known]) if v is not None]
        if known and isinstance(ratio := decibels.get(method), int | float):
            was = min(MOST_SQNR, *known)
            yield _change(method, "SQNR", was, min(MOST_SQNR, ratio), decibel)
        now = latencies.get(method)
        if (then := then.get("latency")) and now and _same_processor(report):
            median = now["steady_ms"]["median"]
            counts = _is_other_latency(then, now)
            yield _change(
                *(method, "latency", then["median"], median, milliseconds),
                less_is_better=True,
                counts=counts,
            )


def _same_processor(report: Json) -> bool:
    return bool(report["baseline"].get("processor") == report.get("processor"))


def _is_other_latency(then: Json, now: Json) -> bool:
    """Tell whether a latency differs by more than what else a machine does can explain: its
    quartiles are apart from the accepted ones, and the ratio to the source, which is timed in turns
    with the package, went the same way."""
    steady = now["steady_ms"]
    ratio = now["ratio"] / then["ratio"]
    slower = steady["low"] > then["high"] and ratio > _STEP
    return slower or (steady["high"] < then["low"] and ratio < 1 / _STEP)


def _change(
    subject: str,
    what: str,
    was: float,
    now: float,
    style: Any,
    less_is_better: bool = False,
    counts: bool = True,
) -> Row:
    """Return the row of a figure; a step too small to be seen in its style is none, nor is one that
    does not count."""
    step = 0.0
    if counts and style(now) != style(was):
        step = now - was
    worse = step > 0 if less_is_better else step < 0
    sign = "+" if step > 0 else "−"
    relative = ""
    if less_is_better and was:
        relative = f" ({sign}{percent(abs(step) / was)})"
    kind = "" if not step else "bad" if worse else "good"
    change = "none"
    if step:
        change = f"{sign}{style(abs(step))}{relative}"
    return {
        "of": subject,
        "figure": what,
        "accepted": figure(was, style),
        "now": figure(now, style),
        "change": Cell(
            change, step, kind=kind, note={"bad": "worse", "good": "better"}.get(kind, "")
        ),
    }
