"""All packages side by side."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Row
from pipeline.report.entries import Entry
from pipeline.report.sections.summary import key_figures


def packages_table(entries: Iterable[Entry]) -> DataTable:
    return DataTable("packages", "Packages", [_row(entry) for entry in entries], brief=10_000)


def page_href(entry: Entry) -> str:
    """Return the link from the page over all packages to that of one; empty if it has none."""
    return f"{quote(entry.package)}/report.html" if entry.report is not None else ""


def _row(entry: Entry) -> Row:
    report = entry.report or {"methods": []}
    kind = "bad" if entry.failed else "good" if entry.report is not None else "soft"
    gates = report.get("gates") or ()
    met = sum(gate["ok"] for gate in gates)
    return {
        "package": name(entry.package, href=page_href(entry)),
        "verdict": Cell(entry.outcome, kind=kind),
        "target": text(report.get("target"), kind="whole"),
        **key_figures(report),
        "gates": figure(
            len(gates) - met if gates else None,
            lambda _: f"{met} of {len(gates)}",
            kind="" if met == len(gates) else "bad",
        ),
        "methods": figure(len(report["methods"]) if entry.report else None),
    }
