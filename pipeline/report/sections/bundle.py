"""The bundled program for a device, with the tolerances to give the runtime."""

from __future__ import annotations

from pipeline.report.cells import figure, name
from pipeline.report.elements import Cell, DataTable, Json, ReportSection


def section(report: Json) -> ReportSection:
    bundle = report.get("bundle")
    if not bundle:
        return ReportSection("device", "For the device")
    suites = bundle["methods"].items()
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
            "case": left["origin"] or "all",
            "why": Cell(left["reason"], kind="wide"),
        }
        for method, suite in suites
        for left in suite["left_out"]
    ]
    return ReportSection(
        "device",
        "For the device",
        f"{bundle['file']} has {bundle['size']:,} bytes.",
        DataTable("bundle", "Cases, and tolerances for the runtime", rows),
        DataTable("left-out", "Left out", left_out),
    )
