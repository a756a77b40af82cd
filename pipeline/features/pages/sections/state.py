"""The section on state that several methods use: shared, or copied for each."""

from __future__ import annotations

from pipeline.report.cells import name, names
from pipeline.report.elements import DataTable, Json, ReportSection, Row

_SHARED = (
    "These methods share their state. An app loads the package with a `Module` whose"
    " `share_memory_arenas` is true; a runtime that gives each method its own memory does not"
    " carry state from one to another."
)
_SPLIT = (
    "Each method has its own copy of these buffers, as the config says: no other method reads "
    "what a method writes. The model has a single copy, so methods are compared with it one by "
    "one."
)


def section(report: Json) -> ReportSection:
    common = report.get("common_state")
    if not common:
        return ReportSection("state", "State")
    rows: list[Row] = [
        {"buffer": name(buffer), "methods": names(methods)}
        for buffer, methods in common["buffers"].items()
    ]
    title = "Buffers copied per method"
    if common["shared"]:
        title = "Buffers that methods share"
    return ReportSection(
        "state",
        "State",
        _SHARED if common["shared"] else _SPLIT,
        DataTable("state", title, rows, brief=20),
    )
