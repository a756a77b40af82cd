"""The files of a package, and the settings that it was validated with."""

from __future__ import annotations

from pipeline.report.cells import code, figure, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row


def section(report: Json) -> ReportSection:
    sizes, digests = report.get("sizes") or {}, report.get("files") or {}
    files: list[Row] = [
        {
            "file": Cell(name, href=name, kind="code"),
            "bytes": figure(sizes.get(name)),
            "BLAKE3": code(digests.get(name, "")),
        }
        for name in sorted(sizes.keys() | digests.keys())
    ]
    places = report.get("places", {})
    settings: list[Row] = [
        {
            "setting": code(name),
            "value": f"{value:g}" if isinstance(value, float) else str(value),
            "set in": source(places.get(f"validate.{name}")),
        }
        for name, value in report["settings"].items()
        if value is not None
    ]
    return ReportSection(
        "files",
        "Files and settings",
        DataTable("files", "Files", files),
        DataTable("settings", "Validated with", settings, brief=0),
    )
