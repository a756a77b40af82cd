"""The report section on the latency of methods on the host."""

from __future__ import annotations

from pipeline.report.cells import figure, name
from pipeline.report.elements import Cell, Chart, DataTable, Json, ReportSection
from pipeline.report.formatting import milliseconds

_MOST_BARS = 12  # in the chart; the table has all methods


def section(report: Json) -> ReportSection:
    timed = [(m["method"], m["latency"]) for m in report["methods"] if m.get("latency")]
    if not timed:
        return ReportSection("latency", "Latency on the host")
    rows = [
        {
            "method": name(method),
            "load": _spread(latency["load_ms"]),
            "first call": figure(latency["first_ms"], milliseconds),
            "further calls": _spread(latency["steady_ms"]),
            "source program": _spread(latency["source_ms"]),
            "ratio": figure(latency["ratio"], "{:.2f} ×".format),
        }
        for method, latency in timed
    ]
    slowest = sorted(timed, key=lambda entry: -entry[1]["steady_ms"]["median"])
    spreads = []
    for method, latency in slowest[:_MOST_BARS]:
        for key, words in (
            ("steady_ms", "the package"),
            ("source_ms", "the source program"),
        ):
            cell = _spread(latency[key])
            is_source = key == "source_ms"
            facts = {"description": f"{method}, {words}: {cell.text} ({cell.note})"}
            spreads.append(
                {**latency[key], **facts, "row": method, "source": is_source}
            )
    more = ""
    if len(timed) > _MOST_BARS:
        more = f" The {_MOST_BARS} slowest of {len(timed)} methods."
    chart = Chart(
        "Further calls.",
        "Median and quartiles of the package, whose delegates use as many threads as they like, "
        "and of its source in eager mode on one thread, on the machine that validated. Times on "
        f"a device differ.{more}",
        [("package", "var(--c0)"), ("source program", "var(--soft)")],
        "Latency of the package and of its source program",
        "latency",
        {"spreads": spreads},
    )
    table = DataTable("times", "Medians, with quartiles", rows)
    return ReportSection("latency", "Latency on the host", chart, table)


def _spread(spread: Json) -> Cell:
    """Return a table cell with a median, and the quartiles as its note."""
    low, high = (milliseconds(spread[quartile]) for quartile in ("low", "high"))
    note = f"{low} to {high}, {spread['runs']} runs"
    return figure(spread["median"], milliseconds, note=note)
