"""Packages: the head of the report of one, and all of them side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Json, Row
from pipeline.report.formatting import NOTHING, decibel, error, percent, sort_key
from pipeline.report.records import delegated_share
from pipeline.store.errors import plural
from pipeline.store.sizes import human_size


class Entry(NamedTuple):
    """A package. `report` is its record, or None; then `error` says why the package could not be
    built, and is empty where it only was not validated yet."""

    package: str
    report: Json | None = None
    error: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "not built")

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
        return f"{quote(os.fsencode(self.package))}/report.html" if self.report is not None else ""


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sort failed packages first, then those not validated, then by name."""
    return sorted(entries, key=lambda e: (not e.failed, e.report is not None, e.package))


def overall_verdict(entries: Iterable[Entry]) -> str:
    """Return how many packages there are, and how many of each outcome."""
    outcomes = [entry.outcome for entry in entries]
    known = ("failed", "not built", "not validated", "passed")
    counts = (f"{outcomes.count(outcome)} {outcome}" for outcome in known if outcome in outcomes)
    return f"{plural(len(outcomes), 'package')}: {', '.join(counts)}" if outcomes else "no packages"


def table(entries: Iterable[Entry]) -> DataTable:
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


def lead(report: Json) -> str:
    """Return the sentence that says whether the package is its source, or what is wrong."""
    methods = report["methods"]
    number = plural(len(methods), "method")
    if not report["ok"]:
        failed = sum(not method["ok"] for method in methods)
        gates = sum(not gate["ok"] for gate in report.get("gates") or ())
        wrong = [f"{failed} of {number} differ from the source"] if failed else []
        wrong += [f"{plural(gates, 'gate')} not met"] if gates else []
        return f"{'; '.join(wrong) or plural(len(report['failures']), 'failure')}."
    unrun = sum(bool(method["not_run"]) for method in methods)
    rest = f" {unrun} of them could not be run on this machine." if unrun else ""
    one, more = "is the same function as its source", "are the same functions as their sources"
    return f"{number} {one if len(methods) == 1 else more}, within the limits.{rest}"


def about(report: Json) -> str:
    return ", ".join(f"{name} {report[name]}" for name in ("model", "target") if report.get(name))


def key_figures(report: Json) -> dict[str, Cell]:
    """Return the figures by which packages are compared."""
    methods = (report.get("delegation") or {}).values()
    share, nodes = delegated_share(methods), sum(counts["nodes"] for counts in methods)
    total = sum(report["sizes"].values()) if report.get("sizes") else None
    sqnr, noisiest = _extreme(report, "sqnr_db", min)
    greatest, farthest = _extreme(report, "max_abs", max)
    return {
        "size": figure(total, human_size, note=f"{total or 0:,} bytes"),
        "nodes delegated": figure(share, percent, note=f"of {nodes:,}", bar=share),
        "worst SQNR": figure(sqnr, decibel, note=f"in {noisiest}"),
        "max error": figure(greatest, error, note=f"in {farthest}"),
    }


def _extreme(
    report: Json, name: str, pick: Callable[..., Json | None]
) -> tuple[float | str | None, str]:
    """Return the least or greatest of a figure over the methods that ran, and its method."""
    ran = [method for method in report["methods"] if method["runs"] and method[name] is not None]
    found = pick(ran, key=lambda method: sort_key(method[name]), default=None)
    return (found[name], found["method"]) if found else (None, "")


def known_figures(report: Json) -> dict[str, Cell]:
    return {title: cell for title, cell in key_figures(report).items() if cell.text != NOTHING}
