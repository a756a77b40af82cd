"""The sections on a package's files, its bundled program for a device, and validation settings."""

from __future__ import annotations

from pipeline.report.cells import code, figure, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row


def section(report: Json) -> ReportSection:
    sizes = report.get("sizes") or {}
    digests = report.get("files") or {}
    files: list[Row] = [
        {
            "file": Cell(file, href=file, kind="code"),
            "bytes": figure(sizes.get(file)),
            "BLAKE3": code(digests.get(file, "")),
        }
        for file in sorted(sizes.keys() | digests.keys())
    ]
    places = report.get("places", {})
    settings: list[Row] = [
        {
            "setting": code(setting),
            "value": f"{value:g}" if isinstance(value, float) else str(value),
            "set in": source(places.get(f"validate.{setting}")),
        }
        for setting, value in report["settings"].items()
        if value is not None
    ]
    return ReportSection(
        "files",
        "Files and settings",
        DataTable("files", "Files", files),
        DataTable("settings", "Settings of validation", settings, brief=0),
    )


def device_section(report: Json) -> ReportSection:
    """Return the section on the bundled program, with the tolerances to give the runtime."""
    bundle = report.get("bundle")
    if bundle:
        suites = bundle["methods"].items()
    else:
        suites = ()
    rows = [
        {
            "method": name(method),
            "cases": figure(len(suite["cases"])),
            "rtol": figure(suite["rtol"], "{:g}".format),
            "atol": figure(suite["atol"], "{:g}".format),
            "load anew": "for each case: it has state" if suite["state"] else "once",
        }
        for method, suite in suites
    ]
    left_out = [
        {
            "method": name(method),
            "case": skip["origin"] or "all",
            "why": Cell(skip["reason"], kind="wide"),
        }
        for method, suite in suites
        for skip in suite["left_out"]
    ]
    return ReportSection(
        "device",
        "For the device",
        f"{bundle['file']} has {bundle['size']:,} bytes." if bundle else None,
        DataTable("bundle", "Cases, and tolerances for the runtime", rows),
        DataTable("left-out", "Left out", left_out),
    )
