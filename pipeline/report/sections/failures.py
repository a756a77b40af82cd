"""What failed, and where: failures, culprits, gates, and the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report import formatting as figures
from pipeline.report.html import tables
from pipeline.report.html.tables import Cell, Table

Json = Mapping[str, Any]


def failures(report: Json) -> Iterator[dict[str, Any]]:
    told: set[str] = set()
    for method in report["methods"]:
        for failure in method["failures"]:
            where = ", ".join(part for part in (failure["inputs"], failure["output"]) if part)
            what = f"{where}: {failure['what']}" if where else failure["what"]
            told.add(f"{method['method']}: {what}")
            place = report.get("places", {}).get(f"methods.{method['method']}", "")
            yield {"method": method["method"], "what": what, "place": tables.source(place)}
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            told.add(gate["sentence"])
            yield {
                "method": "",
                "what": gate["sentence"],
                "place": tables.source(gate.get("place")),
            }
    for sentence in report["failures"]:
        if sentence not in told:
            yield {"method": "", "what": sentence, "place": Cell("")}


def culprits(report: Json) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for method in report["methods"]:
        found = [
            {**culprit, "line": tables.source(culprit["line"]), "runs_in": _runs_in(culprit)}
            for culprit in method.get("culprits") or ()
        ]
        if found:
            yield method["method"], found


def _runs_in(culprit: Json) -> str:
    if culprit["backend"]:
        number = "" if culprit["partition"] is None else f" {culprit['partition']}"
        return f"in delegate{number} of {culprit['backend']}"
    return "on a portable kernel" if culprit["kind"] == "operator" else ""


_SHARES = ("min_delegated_nodes", "min_delegated_ops", "max_size_growth", "max_delegation_drop")


def _of_gate(name: str, value: float) -> str:
    if name in _SHARES:
        return figures.percent(value)
    if name in ("max_size", "max_planned_memory"):
        return figures.size(value)
    if name == "max_latency_ratio":
        return f"{value:.2f} ×"
    return figures.decibel(value) if "sqnr" in name else f"{value:g}"


def gates_table(report: Json) -> Table:
    gates = sorted(report.get("gates") or (), key=lambda gate: gate["ok"])
    rows = [
        (
            tables.code(gate["gate"]),
            tables.verdict(gate["ok"]),
            Cell(gate["method"] or "package"),
            tables.figure(gate["figure"], _of_gate(gate["gate"], gate["figure"])),
            tables.figure(
                gate["limit"],
                ("at least " if gate["gate"].startswith("min") else "at most ")
                + _of_gate(gate["gate"], gate["limit"]),
            ),
            tables.source(gate.get("place")),
        )
        for gate in gates
    ]
    head = ("gate", "verdict", "of", "figure", "limit", "set in")
    return tables.table("gates", "Limits that the config sets", head, rows, (3, 4))


def baseline_table(report: Json) -> Table:
    baseline = report.get("baseline") or {}
    rows = [(Cell(of), Cell(what), *cells) for of, what, cells in _compared(baseline, report)]
    head = ("of", "figure", "accepted", "now", "change")
    return tables.table("baseline", "Against the accepted baseline", head, rows, (2, 3, 4))


def _compared(baseline: Json, report: Json) -> Iterator[tuple[str, str, tuple[Cell, ...]]]:
    if "size" in baseline:
        now = (report.get("contents") or {}).get("size") or sum(report.get("sizes", {}).values())
        yield "package", "size", _change(baseline["size"], now, figures.size, less_is_better=True)
    own = {method["method"]: method for method in report["methods"]}
    for name, then in sorted((baseline.get("methods") or {}).items()):
        counts = (report.get("delegation") or {}).get(name)
        if counts and "nodes" in then:
            was, now = figures.delegated(then), figures.delegated(counts)
            if was is not None and now is not None:
                yield name, "nodes delegated", _change(was, now, figures.percent)
        arenas = ((report.get("contents") or {}).get("methods") or {}).get(name)
        if arenas and isinstance(then.get("planned_memory"), int):
            now = sum(arena["size"] for arena in arenas["planned_memory"])
            cells = _change(then["planned_memory"], now, figures.size, less_is_better=True)
            yield name, "planned memory", cells
        was = _least(then.get("sqnr_db"))
        if name in own and was is not None:
            now_db = own[name]["sqnr_db"]
            if isinstance(now_db, int | float):
                yield name, "SQNR", _change(was, now_db, figures.decibel)


def _least(values: Any) -> float | None:
    known = [v for v in (values if isinstance(values, list) else [values]) if v is not None]
    return min(known, default=None)


def _change(was: float, now: float, style: Any, less_is_better: bool = False) -> tuple[Cell, ...]:
    step = now - was if style(now) != style(was) else 0.0
    worse = step > 0 if less_is_better else step < 0
    sign = "+" if step > 0 else "−"
    kind = "" if not step else "bad" if worse else "good"
    relative = f" ({sign}{figures.percent(abs(step) / was)})" if less_is_better and was else ""
    text = f"{sign}{style(abs(step))}{relative}" if step else "none"
    before, after = (tables.figure(value, style(value)) for value in (was, now))
    return before, after, Cell(text, step, kind=kind)
