"""The section on numerics: errors of outputs against the source, their limits, and a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.features.pages.sections.call_outputs import Output, outputs
from pipeline.features.pages.sections.error_chart import errors_by_limit
from pipeline.features.pages.sections.method_comparisons import (
    figure_cells,
    method_rows,
)
from pipeline.features.pages.sections.movement import movement_table
from pipeline.report.cells import name, verdict_cell
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.method_records import UNASKED
from pipeline.store.errors import listed, plural

_MOST_NAMED = 4  # methods in a sentence


def section(report: Json) -> ReportSection:
    methods = report["methods"]
    places = report.get("places", {})
    rows: list[Row] = []
    if any(method["runs"] or not method["not_run"] for method in methods):
        for method in methods:
            rows += method_rows(method, places)
    return ReportSection(
        "numerics",
        "Numerics",
        *_limits(report),
        DataTable("methods", "Worst figures of each method", rows),
        errors_by_limit(report),
        movement_table(methods),
        DataTable("skipped", "Not run", list(_skipped(methods))),
    )


def calls_section(report: Json) -> ReportSection:
    """Return the section of every call's outputs, failed ones first."""
    rows: list[Row] = []
    for output in sorted(outputs(report), key=lambda output: output.ok):
        row: Row = {
            "method": name(output.method["method"]),
            "input set": output.where + output.suffix,
            "verdict": _output_verdict(output),
        }
        rows.append({**row, **figure_cells(output.errors)})
    table = DataTable("calls", "Outputs of every call", rows, brief=0)
    return ReportSection("calls", "Every call", table)


def _limits(report: Json) -> Iterator[str]:
    """Yield sentences on the inputs that were run, and on limits that were derived."""
    settings = report["settings"]
    methods = report["methods"]
    ran = any(method["runs"] for method in methods if method["kind"] == "program")
    if "atol" not in settings or not ran:
        return
    inputs = (
        f"{plural(settings['inputs'], 'generated input set')} (seed {settings['seed']})"
    )
    steps = f"{plural(settings['steps'], 'call')} in sequence where a method has state"
    yield f"Run on the examples, and on {inputs}; {steps}."
    reasons: dict[str, list[str]] = {}
    for method in methods:
        if not method["runs"]:
            continue
        for comparison in (method, method.get("quantized") or {}):
            reason = comparison.get("limits_reason")
            if reason:
                reasons.setdefault(reason, []).append(method["method"])
    for reason, names in reasons.items():
        yield f"Limits of {listed(dict.fromkeys(names), _MOST_NAMED)}: {reason}."


def _output_verdict(output: Output) -> Cell:
    mismatch = output.errors.get("mismatch")
    if mismatch:
        return Cell(mismatch, kind="bad")
    if not output.ok:
        return verdict_cell("failed")
    judged = output.errors.get("judged", True)
    return verdict_cell("passed" if judged else "not judged")


def _skipped(methods: Sequence[Json]) -> Iterator[Row]:
    """Yield rows for what was not run: methods, input sets, omitted parts, and references."""
    for method in methods:
        if method["not_run"]:
            yield _skip_row(method, "all", method["not_run"])
    for method in methods:
        for skip in method["skipped"]:
            yield _skip_row(method, skip["origin"], skip["reason"])
    for method in methods:
        for inputs in method.get("left_out", ()):
            if inputs == UNASKED:
                yield _skip_row(method, "all", UNASKED)
            else:
                yield _skip_row(
                    method, inputs, "left out: validate.budget was exhausted"
                )
    for method in methods:
        for skip in method.get("reference", {}).get("skipped", ()):
            yield _skip_row(
                method,
                f"{skip['origin']}, against the reference",
                skip["reason"],
            )


def _skip_row(method: Json, inputs: str, reason: str) -> Row:
    return {
        "method": name(method["method"]),
        "input set": inputs,
        "why": Cell(reason, kind="wide"),
    }
