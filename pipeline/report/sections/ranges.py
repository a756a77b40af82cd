"""Dynamic sizes whose range lowering narrowed."""

from __future__ import annotations

from pipeline.report.cells import code, name, source
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import size_range
from pipeline.report.records import in_order


def section(report: Json) -> ReportSection:
    rows: list[Row] = [
        {
            "method": name(method),
            "size": code(each["size"]),
            "lowered for": size_range(each["lowered"]),
            "the source takes": size_range(each["source"]),
            "narrowed by": code(
                each["operator"], note=f"in {each['module']}" if each["module"] else ""
            ),
            "source": source(each["line"]),
        }
        for method, narrowed in in_order(report, report.get("narrowed")).items()
        for each in narrowed
    ]
    return ReportSection(
        "ranges",
        "Ranges of sizes",
        DataTable("ranges", "Sizes that are lowered for less than the source takes", rows),
    )
