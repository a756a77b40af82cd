"""Libraries of operators beside ATen's that a package needs."""

from __future__ import annotations

from pipeline.report.cells import name, names, text
from pipeline.report.elements import DataTable, Json, ReportSection, Row

_DIGITS = 12  # of a digest


def section(report: Json) -> ReportSection:
    rows: list[Row] = [
        {
            "library": name(each["name"] or "unknown"),
            "version": text(each.get("version") or each.get("digest", "")[:_DIGITS]),
            "operators": names(each["operators"]),
            "no kernel here": names(sorted({*each["operators"]} - {*each["kernels"]})),
            "methods": names(each["methods"]),
        }
        for each in report.get("operators") or ()
    ]
    table = DataTable("operators", "Operators that a runtime needs beside its own", rows)
    return ReportSection("operators", "Libraries of operators", table)
