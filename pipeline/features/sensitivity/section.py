"""The report section on the cost of quantizing each module, and on moving to another backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.features.sensitivity.against_table import name_group
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
_AGAINST_LEAD = (
    "What `doit sensitivity --against` measured of these files: builds in which the other backend "
    "has the named modules or operators of a method. Bytes, times and metrics are differences from "
    "this package; the SQNR is the build's own."
)
_MOST_ROWS = 20  # per method, the noisiest first


def section(report: Json) -> ReportSection:
    """Return the tables of a package's modules, empty if none were measured."""
    record = report.get(FIELD) or {}
    rows: list[Row] = []
    for method, facts in (record.get("methods") or {}).items():
        rows += _make_rows(method, facts)
    parts: list[DataTable | str] = []
    if rows:
        parts += [_LEAD, DataTable(FIELD, "Cost of quantizing each module", rows)]
    if against := record.get("against"):
        title = f"What {against['backend']} would change"
        rows = _compare_groups(against)
        parts += [_AGAINST_LEAD, DataTable(f"{FIELD}-against", title, rows)]
    return ReportSection(FIELD, "Sensitivity", *parts)


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
            "in float: a call": figure(spread.get("median"), _add_sign),
            "in float: metric": figure(change.get("metric"), short),
        }


def _add_sign(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{milliseconds(abs(value))}"


def _compare_groups(against: Json) -> list[Row]:
    """Return a row for each build of a method, and one for the unchanged package."""
    rows: list[Row] = []
    for method, facts in against["methods"].items():
        for group in [*facts["groups"], *facts["operators"]]:
            is_chosen = (
                bool(facts["settings"]) and group.get("modules") == facts["proposed"]
            )
            rows.append(_make_group_row(method, group, is_chosen))
        rows.append(
            {
                "of": name(method),
                "moved": "(as it is)",
                "bytes": "",
                "a call": figure(facts["base_ms"], milliseconds),
                "SQNR": figure(facts["sqnr_db"], decibel),
                "metric": figure(facts["metric_value"], short),
                "": "",
            }
        )
    return rows


def _make_group_row(method: str, group: Json, is_chosen: bool) -> Row:
    spread = group["ms"] or {}
    is_even = bool(spread) and spread["low"] <= 0 <= spread["high"]
    return {
        "of": name(method),
        "moved": code(name_group(group)),
        "bytes": figure(group["bytes"], "{:+,}".format),
        "a call": figure(
            spread.get("median"), _add_sign, note="even" if is_even else ""
        ),
        "SQNR": figure(group["sqnr_db"], decibel),
        "metric": figure(group.get("metric"), "{:+.3g}".format),
        "": Cell("faster, as good", kind="good") if is_chosen else "",
    }
