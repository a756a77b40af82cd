"""Report sections on gates and limits of metrics, and on changes since the accepted baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.features.gates.outputs import find_changed_outputs
from pipeline.report.cells import code, figure, name, source, verdict, verdict_cell
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.formatting import decibel, milliseconds, percent, short
from pipeline.report.packages import Entry
from pipeline.report.records import MOST_SQNR, delegated_share, in_order, is_unchecked
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size

_STEP = 1.1  # the factor from which on a ratio of latencies has changed
_WORDS = {"bad": "worse", "good": "better"}
_LEFT_ALONE = {"no partitioners": "does not apply", "no baseline": "no baseline yet"}
_UNITS: dict[str, Callable[[Any], str]] = {
    "share": percent,
    "bytes": human_size,
    "times": "{:.2f} ×".format,
    "dB": decibel,
    "calls": lambda count: plural(count, "call"),
    "cycles": "{:,}".format,
    "needs": lambda count: plural(count, "unmet need"),
    "ms": milliseconds,
}


def section(report: Json) -> ReportSection:
    gates = _list_gates(report)
    compared = list(compare(report))
    return ReportSection(
        "gates",
        "Gates" if gates else "Against the baseline",
        DataTable("gates", "Limits that the config sets", gates),
        DataTable("baseline", "Against the accepted baseline", compared),
    )


def _list_gates(report: Json) -> list[Row]:
    """Return a row for each gate and for each limit of a metric, failures first."""
    order = {
        method["method"]: place for place, method in enumerate(report["methods"], 1)
    }
    rows: list[tuple[bool, int, Row]] = []
    for gate in report.get("gates") or ():
        rows.append((gate["ok"], order.get(gate["method"], 0), _gate(gate)))
    for metric in report.get("metrics") or ():
        if metric["limit"] is not None:
            place = order.get(metric["method"], 0)
            rows.append(
                (metric["verdict"] != "failed", place, _make_metric_row(metric))
            )
    rows.sort(key=lambda row: row[:2])
    return [row for _, _, row in rows]


def _make_metric_row(metric: Json) -> Row:
    """Return the row of a metric's limit; its figure is the value, or the drop or rise."""
    kind = metric["kind"]
    value = metric["value"]
    if kind in ("max_drop", "max_rise"):
        value = metric["drop"] if kind == "max_drop" else -metric["drop"]
    bound = "at least" if kind == "min" else "at most"
    return {
        "gate": code(f"{metric['metric']} {kind}"),
        "verdict": verdict_cell(metric["verdict"]),
        "of": ", ".join(metric.get("methods") or [metric["method"]]),
        "figure": figure(value, short),
        "limit": figure(metric["limit"], lambda limit: f"{bound} {short(limit)}"),
        "note": Cell(metric["sentence"], kind="wide") if metric["sentence"] else "",
        "set in": source(metric.get("place")),
    }


def _gate(gate: Json) -> Row:
    style = _UNITS.get(gate.get("unit", ""), short)
    unchecked = _LEFT_ALONE.get(gate.get("left_alone", ""), "not checked")
    return {
        "gate": code(gate["gate"]),
        "verdict": verdict(gate["ok"], unchecked if is_unchecked(gate) else ""),
        "of": _describe_subject(gate),
        "figure": figure(gate["figure"], style),
        "limit": figure(gate["limit"], partial(_describe_limit, gate, style)),
        "note": Cell(gate["sentence"], kind="wide") if gate["sentence"] else "",
        "set in": source(gate.get("place")),
    }


def _describe_limit(gate: Json, style: Callable[[Any], str], limit: float) -> str:
    """Return the limit of a gate in words.

    If the limit is a list of what is allowed, the gate counts everything else, and allows none of
    it.
    """
    if gate.get("unit") in ("calls", "needs"):
        return "none"
    bound = "at least" if gate["gate"].startswith("min") else "at most"
    return f"{bound} {style(limit)}"


def _describe_subject(gate: Json) -> str:
    subject = gate["method"] or "package"
    if "device" in gate:
        return f"{subject} on {gate['device']}"
    return str(subject)


def find_changes(report: Json) -> DataTable:
    """Return the table of figures that differ from the accepted baseline."""
    rows = [row for row in compare(report) if is_change(row)]
    return DataTable("changes", "Changed", rows)


def changes_section(entries: Sequence[Entry]) -> ReportSection:
    """Return the section on changes since the accepted baselines, regressions first."""
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
    """Return whether a row of `compare` is a change."""
    cell = row["change"]
    return isinstance(cell, Cell) and bool(cell.kind)


def is_worse(row: Row) -> bool:
    """Return whether a row of `compare` is a regression."""
    cell = row["change"]
    return isinstance(cell, Cell) and cell.kind == "bad"


def compare(report: Json) -> Iterator[Row]:
    """Yield a row for each figure of the accepted baseline, with the current figure."""
    baseline = report.get("baseline") or {}
    contents = report.get("contents") or {}
    shapes = report.get("output_shapes", {})
    for method, accepted in in_order(report, baseline.get("methods")).items():
        if shapes.get(method) and accepted.get("outputs"):
            yield from _compare_outputs(method, accepted["outputs"], shapes[method])
    if "size" in baseline:
        size = contents.get("size") or sum(report.get("sizes", {}).values())
        yield _change(
            "package", "size", baseline["size"], size, human_size, less_is_better=True
        )
    measured = {method["method"]: method for method in report["methods"]}
    for method, accepted in in_order(report, baseline.get("methods")).items():
        delegation = (report.get("delegation") or {}).get(method)
        if delegation and "nodes" in accepted:
            yield from _compare_delegation(method, accepted, delegation)
        arenas = contents.get("methods", {}).get(method)
        if arenas:
            yield from _compare_memory(method, accepted, arenas)
        figures = measured.get(method, {})
        yield from _compare_sqnr(method, accepted, figures)
        if _same_processor(report):
            yield from _compare_latency(method, accepted, figures)


def _compare_outputs(
    method: str, accepted: Mapping[str, str], shapes: Mapping[str, str]
) -> Iterator[Row]:
    """Yield a row for each output whose shape or dtype changed, since callers have to adapt."""
    for output, before, now in find_changed_outputs(accepted, shapes):
        yield {
            "of": method,
            "figure": f"output {output}",
            "accepted": before,
            "now": now,
            "change": Cell(f"{before} to {now}", kind="bad", note="other output"),
        }


def _compare_delegation(method: str, accepted: Json, delegation: Json) -> Iterator[Row]:
    before, now = delegated_share([accepted]), delegated_share([delegation])
    if before is not None and now is not None:
        yield _change(method, "nodes delegated", before, now, percent)


def _compare_memory(method: str, accepted: Json, contents: Json) -> Iterator[Row]:
    before = accepted.get("planned_memory")
    if isinstance(before, int):
        now = sum(arena["size"] for arena in contents["planned_memory"])
        yield _change(
            method, "planned memory", before, now, human_size, less_is_better=True
        )


def _compare_sqnr(method: str, accepted: Json, figures: Json) -> Iterator[Row]:
    recorded = accepted.get("sqnr_db")
    ratios = recorded if isinstance(recorded, list) else [recorded]
    ratios = [ratio for ratio in ratios if ratio is not None]
    now = figures.get("sqnr_db")
    if ratios and isinstance(now, int | float):
        # Ratios above this mean that outputs are all but equal, and say nothing more.
        before = min(MOST_SQNR, *ratios)
        yield _change(method, "SQNR", before, min(MOST_SQNR, now), decibel)


def _compare_latency(method: str, accepted: Json, figures: Json) -> Iterator[Row]:
    before, now = accepted.get("latency"), figures.get("latency")
    if before and now:
        yield _change(
            method,
            "latency",
            before["median"],
            now["steady_ms"]["median"],
            milliseconds,
            less_is_better=True,
            counts=_is_other_latency(before, now),
        )


def _same_processor(report: Json) -> bool:
    baseline = report.get("baseline") or {}
    return bool(baseline.get("processor") == report.get("processor"))


def _is_other_latency(then: Json, now: Json) -> bool:
    """Return whether a latency differs by more than other load on the machine can explain.

    Its quartiles must not overlap the accepted ones, and the ratio to the source, which is timed in
    alternation with the package, must have changed in the same direction.
    """
    steady = now["steady_ms"]
    ratio = now["ratio"] / then["ratio"]
    slower = steady["low"] > then["high"] and ratio > _STEP
    return slower or (steady["high"] < then["low"] and ratio < 1 / _STEP)


def _change(
    subject: str,
    figure_name: str,
    before: float,
    now: float,
    style: Any,
    less_is_better: bool = False,
    counts: bool = True,
) -> Row:
    """Return the row of a figure.

    A step too small for the figure's style is shown as none, and one that doesn't count as within
    noise.
    """
    step = 0.0
    differs = style(now) != style(before)
    if counts and differs:
        step = now - before
    change = _step(step, before, style, less_is_better)
    return {
        "of": subject,
        "figure": figure_name,
        "accepted": figure(before, style),
        "now": figure(now, style),
        "change": Cell("within noise", step) if differs and not counts else change,
    }


def _step(step: float, before: float, style: Any, less_is_better: bool) -> Cell:
    """Return the cell of a change, in the colour for better or worse."""
    if not step:
        return Cell("none", step)
    is_worse = step > 0 if less_is_better else step < 0
    kind = "bad" if is_worse else "good"
    sign = "+" if step > 0 else "−"
    if style is percent:  # of shares, whose difference is no share of anything
        size = f"{100 * abs(step):.1f} points"
    else:
        size = style(abs(step))
    words = f"{sign}{size}"
    if less_is_better and before:
        words += f" ({sign}{percent(abs(step) / before)})"
    return Cell(words, step, kind=kind, note=_WORDS[kind])
