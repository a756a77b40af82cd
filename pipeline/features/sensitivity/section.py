"""The section of a report on what quantizing each module costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.sensitivity.planning import FIELD
from pipeline.report.cells import code, figure, name
from pipeline.report.elements import Cell, DataTable, ReportSection, Row
from pipeline.report.formatting import decibel, milliseconds, percent, short
from pipeline.store.sizes import human_size

Json = Mapping[str, Any]
_LEAD = (
    "Measured by `doit sensitivity` for these files: the SQNR of the worst output on the worst "
    "example with only this module quantized, and the cost of the package with only this module "
    "in float."
)
_MOST_ROWS = 20  # of a method, the noisiest first


def section(report: Json) -> ReportSection:
    """Return the table of the modules of a package; empty where none were measured."""
    record = report.get(FIELD) or {}
    rows: list[Row] = []
    for method, facts in (record.get("methods") or {}).items():
        rows += _make_rows(method, facts)
    if not rows:
        return ReportSection(FIELD, "Sensitivity")
    table = DataTable(FIELD, "Cost of quantizing each module", rows)
    return ReportSection(FIELD, "Sensitivity", _LEAD, table)


def _make_rows(method: str, facts: Json) -> Iterator[Row]:
    for row in facts["modules"][:_MOST_ROWS]:
        choice: Cell | str = ""
        if row["module"] in facts["kept"]:
            choice = Cell("keep in float", kind="warn")
        elif row["chosen"]:
            choice = "noisiest"
        change = row.get("in_float") or {}
        spread = change.get("ms") or {}
        yield {
            "of": name(method),
            "module": code(row["module"] or "(its own operators)"),
            "SQNR alone": figure(
                row["sqnr_db"], decibel, note="" if row["measured"] else "estimated"
            ),
            "noise": figure(row["share"], percent),
            "saves": figure(row["saved_bytes"], human_size),
            "": choice,
            "in float: bytes": figure(change.get("bytes"), "{:+,}".format),
            "in float: a call": figure(
                spread.get("median"),
                lambda value: f"{'+' if value > 0 else '−'}{milliseconds(abs(value))}",
            ),
            "in float: metric": figure(change.get("metric"), short),
        }
