"""Packages in the reports over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Json, Row
from pipeline.report.sections.summary import key_figures
from pipeline.store.errors import plural


class Entry(NamedTuple):
    """A package. `report` is its record, or None; then `error` says why the package could not be
    built, and is empty where it only was not validated yet."""

    package: str
    report: Json | None = None
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error) or (self.report is not None and not self.report["ok"])

    @property
    def outcome(self) -> str:
        if self.error:
            return "not built"
        if self.report is None:
            return "not validated"
        return "passed" if self.report["ok"] else "failed"

    @property
    def failures(self) -> list[str]:
        if self.error:
            return [self.error]
        return list(self.report["failures"]) if self.report is not None else []

    @property
    def page(self) -> str:
        """Return the link from the page over all packages to that of this one, if it has one."""
        return f"{quote(self.package)}/report.html" if self.report is not None else ""


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sort failed packages first, then those not validated, then by name."""
    return sorted(entries, key=lambda e: (not e.failed, e.report is not None, e.package))


def overall_verdict(entries: Iterable[Entry]) -> str:
    """Return how many packages there are, and how many of each outcome."""
    outcomes = [entry.outcome for entry in entries]
    known = ("failed", "not built", "not validated", "passed")
    counts = (f"{outcomes.count(outcome)} {outcome}" for outcome in known if outcome in outcomes)
    return f"{plural(len(outcomes), 'package')}: {', '.join(counts)}" if outcomes else "no packages"


def packages_table(entries: Iterable[Entry]) -> DataTable:
    """Return all packages side by side."""
    return DataTable("packages", "Packages", [_row(entry) for entry in entries], brief=10_000)


def _row(entry: Entry) -> Row:
    report = entry.report or {"methods": []}
    kind = "bad" if entry.failed else "good" if entry.report is not None else "soft"
    gates = report.get("gates") or ()
    met = sum(gate["ok"] for gate in gates)
    return {
        "package": name(entry.package, href=entry.page),
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
