"""The section on dynamic sizes whose range lowering narrowed."""

from __future__ import annotations

from pipeline.report.cells import code, name, source
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import size_range
from pipeline.report.records import in_order


def section(report: Json) -> ReportSection:
    rows: list[Row] = [
        {
            "method": name(method),
            "size": code(size["size"]),
            "lowered for": size_range(size["lowered"]),
            "the source accepts": size_range(size["source"]),
            "narrowed by": code(
                size["operator"], note=f"in {size['module']}" if size["module"] else ""
            ),
            "source": source(size["line"]),
        }
        for method, narrowed in in_order(report, report.get("narrowed")).items()
        for size in narrowed
    ]
    return ReportSection(
        "ranges",
        "Ranges of sizes",
        DataTable(
            "ranges",
            "Sizes that are lowered for a smaller range than the source accepts",
            rows,
        ),
    )
