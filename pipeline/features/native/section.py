"""The table of devices: a row for each method, a column for each device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report.cells import name, verdict_cell
from pipeline.report.elements import Cell, DataTable, ReportSection
from pipeline.report.formatting import error, milliseconds
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
_TITLE = "Devices"
_LEAD = (
    "Each call was repeated on these devices, and held to the limits that it was held to here. "
    "A cell has the verdict, the worst error as a multiple of its limit, the milliseconds of "
    "loading and of a call (medians), and memory: the peak of the process where it is no "
    "emulator's, else what the runtime allocated. Times of emulated processors say nothing of real "
    "ones."
)


def section(report: Json) -> ReportSection:
    """Return the table of devices; empty where the package ran on this machine's bindings alone."""
    methods = [method for method in report["methods"] if method.get("devices")]
    names: dict[str, None] = {}
    for method in methods:
        names |= dict.fromkeys(method["devices"])
    rows = []
    for method in methods:
        row: dict[str, Cell | str] = {"method": name(method["method"])}
        for device in names:
            row[device] = _make_cell(method["devices"].get(device, {}))
        rows.append(row)
    if not rows:
        return ReportSection("devices", _TITLE)
    table = DataTable("devices", "Verdicts by device", rows)
    return ReportSection("devices", _TITLE, _LEAD, table)


def _make_cell(facts: Json) -> Cell:
    if not facts:
        return verdict_cell("not run")
    verdict = facts["verdict"]
    if "calls" not in facts:
        return verdict_cell(verdict, facts["reason"])
    notes = []
    if facts["of_limit"] is not None:
        notes.append(f"{error(facts['of_limit'])} × limit")
    if facts["load_ms"] is not None:
        notes.append(f"load {milliseconds(facts['load_ms'])}")
    if facts["run_ms"] is not None:
        notes.append(f"call {milliseconds(facts['run_ms'])}")
    notes += _describe_memory(facts["memory"])
    if facts["differing"]:
        notes.append(
            f"other bytes in {facts['differing']} of {facts['repeats']} repeated calls"
        )
    return verdict_cell(verdict, ", ".join(notes))


def _describe_memory(memory: Json) -> list[str]:
    if "peak" in memory:
        return [f"{human_size(memory['peak'])} at most"]
    if not memory:
        return []
    allocated = memory["planned"] + memory["method"] + memory["temporary"]
    return [f"{human_size(allocated)} allocated"]
