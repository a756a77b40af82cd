"""The section on warnings from lowering."""

from __future__ import annotations

from pipeline.features.pages.codes import add_code
from pipeline.report.cells import code, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.records import in_order


def section(report: Json) -> ReportSection:
    rows: list[Row] = [
        {
            "method": name(method),
            "operator": code(warning["operator"]),
            "module": code(warning["module"]),
            "warning": Cell(add_code(warning["what"], "warning"), kind="wide"),
            "source": source(warning["line"]),
        }
        for method, warnings in in_order(report, report.get("warnings")).items()
        for warning in warnings
    ]
    return ReportSection(
        "warnings", "Warnings", DataTable("warnings", "Warnings from lowering", rows)
    )
