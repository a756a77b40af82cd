"""The report section on devices: a table with a row per method and a column per device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.cells import figure, name, verdict_cell
from pipeline.report.elements import Cell, DataTable, ReportSection, Row
from pipeline.report.formatting import error, milliseconds
from pipeline.report.packages import Entry
from pipeline.report.verdicts import VERDICTS
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
_TITLE = "Devices"
_LEAD = (
    "These devices repeated each call, within the limits of this machine. A cell has the verdict, "
    "the worst error as a multiple of its limit, the median times of loading and of a call, and "
    "memory: the peak of the process, or on an emulator what the runtime allocated. Times on an "
    "emulator don't predict those of a real processor."
)


def section(report: Json) -> ReportSection:
    """Return the table of devices; empty if the package ran only on this machine's bindings."""
    methods = [method for method in report["methods"] if method.get("devices")]
    names: dict[str, None] = {}
    for method in methods:
        names |= dict.fromkeys(method["devices"])
    rows = []
    methods.sort(key=_rank_method)
    for method in methods:
        row: dict[str, Cell | str] = {"method": name(method["method"])}
        for device in names:
            row[device] = _make_cell(method["devices"].get(device, {}))
        rows.append(row)
    if not rows:
        return ReportSection("devices", _TITLE)
    table = DataTable("devices", "Verdicts by device", rows)
    counts = [f"{device}: {_count_verdicts(device, methods)}." for device in names]
    return ReportSection("devices", _TITLE, " ".join(counts), _LEAD, table)


def _rank_method(method: Json) -> int:
    """Return the rank of a method's worst verdict on any device; 0 is the worst."""
    verdicts = [facts["verdict"] for facts in method["devices"].values()]
    return min(map(VERDICTS.index, verdicts))


def _count_verdicts(device: str, methods: Sequence[Json]) -> str:
    verdicts: Counter[str] = Counter()
    for method in methods:
        facts = method["devices"].get(device) or {"verdict": "not run"}
        verdicts[facts["verdict"]] += 1
    counts = [
        f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict]
    ]
    return ", ".join(counts)


def _make_cell(facts: Json) -> Cell:
    if not facts:
        return verdict_cell("not run")
    verdict = facts["verdict"]
    if "calls" not in facts:
        return verdict_cell(verdict, facts["reason"])
    notes = _describe_growth(facts.get("growth"))
    if facts["of_limit"] is not None:
        notes.append(f"{error(facts['of_limit'])} × limit")
    if facts["load_ms"] is not None:
        notes.append(f"load {milliseconds(facts['load_ms'])}")
    if facts["run_ms"] is not None:
        notes.append(_describe_calls(facts))
    notes += _describe_memory(facts["memory"])
    if facts["differing"]:
        notes.append(
            f"different bytes in {facts['differing']} of {facts['repeats']} repeated calls"
        )
    return verdict_cell(verdict, ", ".join(notes))


def _describe_growth(growth: Json | None) -> list[str]:
    """Return notes on how a method has changed since the baseline it ran alternately with."""
    if growth is None:
        return []
    if "reason" in growth:
        return [f"growth not judged: {growth['reason']}"]
    return [
        f"latency {growth['latency']:+.1%} since the baseline",
        f"memory {growth['memory']:+.1%}",
    ]


def _describe_calls(facts: Json) -> str:
    words = f"call {milliseconds(facts['run_ms'])}"
    if facts.get("p95_ms") is not None:
        words += f" (95 % within {milliseconds(facts['p95_ms'])})"
    return words


def overview(entries: Sequence[Entry]) -> ReportSection:
    """Return one table of all packages on their devices.

    The worst verdicts come first, then the largest changes of latency.
    """
    rows: list[tuple[int, float, Row]] = []
    has_growth = False
    for entry in entries:
        for method in (entry.report or {}).get("methods", ()):
            for device, facts in (method.get("devices") or {}).items():
                if "calls" in facts:
                    growth = facts.get("growth") or {}
                    has_growth |= "latency" in growth
                    rank = VERDICTS.index(facts["verdict"])
                    row = _make_row(entry, method, device, facts)
                    rows.append((rank, -abs(growth.get("latency", 0.0)), row))
    rows.sort(key=lambda row: row[:2])
    shown: list[Row] = []
    for *_, row in rows:
        if not has_growth:
            row = {title: cell for title, cell in row.items() if "growth" not in title}
        shown.append(row)
    table = DataTable("on-devices", "By device", shown)
    return ReportSection("on-devices", _TITLE, table)


def _make_row(entry: Entry, method: Json, device: str, facts: Json) -> Row:
    growth = facts.get("growth") or {}
    memory = facts["memory"]
    allocated = sum(memory.get(part, 0) for part in ("planned", "method", "temporary"))
    return {
        "package": name(entry.package, href=entry.page),
        "method": name(method["method"]),
        "device": device,
        "latency growth": figure(growth.get("latency"), "{:+.1%}".format),
        "memory growth": figure(growth.get("memory"), "{:+.1%}".format),
        "call": figure(facts["run_ms"], milliseconds),
        "load": figure(facts["load_ms"], milliseconds),
        "memory": figure(memory.get("peak", allocated), human_size),
        "verdict": verdict_cell(facts["verdict"], facts["reason"]),
    }


def _describe_memory(memory: Json) -> list[str]:
    if "peak" in memory:
        return [f"{human_size(memory['peak'])} at most"]
    if not memory:
        return []
    allocated = memory["planned"] + memory["method"] + memory["temporary"]
    return [f"{human_size(allocated)} allocated"]
