"""The section on the operator libraries, other than ATen, that a package needs."""

from __future__ import annotations

from pipeline.report.cells import name, names, text
from pipeline.report.elements import DataTable, Json, ReportSection, Row

_DIGITS = 12  # of a digest


def section(report: Json) -> ReportSection:
    rows: list[Row] = [
        {
            "library": name(library["name"] or "unknown"),
            "version": text(
                library.get("version") or library.get("digest", "")[:_DIGITS]
            ),
            "operators": names(library["operators"]),
            "no kernel here": names(
                sorted({*library["operators"]} - {*library["kernels"]})
            ),
            "methods": names(library["methods"]),
        }
        for library in report.get("operators") or ()
    ]
    table = DataTable(
        "operators", "Operators that a runtime needs in addition to its own", rows
    )
    return ReportSection("operators", "Libraries of operators", table)
