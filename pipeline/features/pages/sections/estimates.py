"""The section on estimates: cycles and memory of a method, as an NPU's compiler predicts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import milliseconds
from pipeline.report.records import in_order
from pipeline.store.sizes import human_size


def section(report: Json) -> ReportSection:
    rows: list[Row] = []
    tools: set[str] = set()
    for method, counts in in_order(report, report.get("delegation")).items():
        estimates = counts.get("estimates", ())
        tools |= {estimate["tool"] for estimate in estimates}
        rows += _rows(method, estimates)
    title = f"Estimated by {' and '.join(sorted(tools))}"
    about = (
        "One call of all delegates of a method, one after another, as the compiler estimates it "
        "for the device. Nothing was measured, and operators outside delegates are not "
        "counted. SRAM and DRAM are the maximum over delegates; flash is the sum."
    )
    table = DataTable("estimates", "By method", rows)
    return ReportSection("estimates", title, about if rows else None, table)


def _rows(method: str, estimates: Sequence[Json]) -> Iterator[Row]:
    """Yield a row for each backend that has estimates for a method."""
    by_backend: dict[str, list[Json]] = {}
    for estimate in estimates:
        by_backend.setdefault(estimate["backend"], []).append(estimate)
    for backend, delegates in by_backend.items():
        seconds = sum(estimate["cycles"] / estimate["clock"] for estimate in delegates)
        clocks = sorted({estimate["clock"] / 1e6 for estimate in delegates})
        megahertz = [f"{clock:g} MHz" for clock in clocks]
        rate = ""
        if seconds:
            rate = f"{1 / seconds:,.1f} per second"
        most_sram = max(estimate["sram"] for estimate in delegates)
        most_dram = max(estimate["dram"] for estimate in delegates)
        yield {
            "method": name(method),
            "backend": text(backend),
            "delegates": figure(len(delegates)),
            "cycles": figure(_sum(delegates, "cycles")),
            "computing": figure(_sum(delegates, "busy_cycles")),
            "clock": text(", ".join(megahertz)),
            "time": figure(1000 * seconds, milliseconds, note=rate),
            "MACs": figure(_sum(delegates, "macs")),
            "SRAM": figure(most_sram, human_size),
            "DRAM": figure(most_dram, human_size),
            "on-chip flash": figure(_sum(delegates, "on_chip_flash"), human_size),
            "off-chip flash": figure(_sum(delegates, "off_chip_flash"), human_size),
        }


def _sum(estimates: Sequence[Json], field: str) -> int:
    return sum(estimate[field] for estimate in estimates)
