"""The report's table of task metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.features.metrics.judging import round_figure
from pipeline.report.cells import code, figure, source, verdict_cell
from pipeline.report.elements import Cell, DataTable, ReportSection, Row
from pipeline.report.formatting import short

Json = Mapping[str, Any]
_LEAD = (
    "The scores of the package and of its source (PyTorch's own module, if the exporter names "
    "it) on data of the workspace, with 95 % confidence intervals. Drops are measured on the "
    "same samples. A limit within the interval is not judged."
)


def section(report: Json) -> ReportSection:
    """Return the section with a package's metrics, without a table if it has none."""
    rows = [_make_row(record) for record in report.get("metrics") or ()]
    if not rows:
        return ReportSection("metrics", "Task metrics")
    table = DataTable("metrics", "Limits on metrics", rows)
    return ReportSection("metrics", "Task metrics", _LEAD, table)


def _make_row(record: Json) -> Row:
    verdict: Cell | str = ""
    if record["verdict"]:
        verdict = verdict_cell(record["verdict"])
    limit: Cell | str = ""
    if record["limit"] is not None:
        limit = figure(record["limit"], short, note=record["kind"])
    return {
        "metric": code(record["metric"]),
        "verdict": verdict,
        "of": ", ".join(record.get("methods") or [record["method"]]),
        "package": _make_figure(record, "value", "interval"),
        "source": _make_source(record),
        "drop": _make_figure(record, "drop", "drop_interval"),
        "limit": limit,
        "samples": figure(record.get("samples")),
        "note": Cell(record["sentence"], kind="wide") if record["sentence"] else "",
        "set in": source(record.get("place")),
    }


def _make_source(record: Json) -> Cell:
    """Return the cell of the source's value, with the kind of source as its note."""
    note = record.get("against", "")
    return figure(record.get("source"), round_figure, note=note)


def _make_figure(record: Json, name: str, interval_name: str) -> Cell:
    """Return the cell of a value, with its interval as its note."""
    note = ""
    if record.get(interval_name):
        low, high = record[interval_name]
        note = f"{round_figure(low)} to {round_figure(high)}"
    return figure(record.get(name), round_figure, note=note)
