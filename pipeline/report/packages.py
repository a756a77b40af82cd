"""Packages: the head of the report of one, and all of them side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Json, Row
from pipeline.report.formatting import NOTHING, decibel, error, percent, sort_key
from pipeline.report.records import ALL, LATENCY, UNASKED, delegated_share, is_unchecked
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_NAMED, _MOST_REASONS = 4, 2  # in a sentence: methods, why they could not be run


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
        return "not validated" if self.report is None else outcome(self.report)

    @property
    def failures(self) -> list[str]:
        if self.error:
            return [self.error]
        return list(self.report["failures"]) if self.report is not None else []

    @property
    def page(self) -> str:
        """Return the link from the page over all packages to that of this one, if it has one."""
        return f"{quote(os.fsencode(self.package))}/report.html" if self.report is not None else ""


def outcome(report: Json) -> str:
    """Return the verdict on a package: what failed has failed; what no method of a program was run
    of has not passed."""
    if not report["ok"]:
        return "failed"
    ran = [bool(each["runs"]) for each in report["methods"] if each["kind"] == "program"]
    if all(ran):
        return "passed"
    return "passed in part" if any(ran) else "not run"


def outcome_kind(verdict: str) -> str:
    """Return the class of the style that a verdict is shown in."""
    kinds = {"passed": "good", "failed": "bad", "not built": "bad"}
    return kinds.get(verdict, "soft")


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sort failed packages first, then those not validated, then by name."""
    return sorted(entries, key=lambda e: (not e.failed, e.report is not None, e.package))


def overall_verdict(entries: Iterable[Entry]) -> str:
    """Return how many packages there are, and how many of each outcome."""
    outcomes = [entry.outcome for entry in entries]
    known = ("failed", "not built", "not validated", "not run", "passed in part", "passed")
    counts = (f"{outcomes.count(outcome)} {outcome}" for outcome in known if outcome in outcomes)
    return f"{plural(len(outcomes), 'package')}: {', '.join(counts)}" if outcomes else "no packages"


def table(entries: Iterable[Entry]) -> DataTable:
    """Return all packages side by side."""
    return DataTable("packages", "Packages", [_row(entry) for entry in entries], brief=10_000)


def _row(entry: Entry) -> Row:
    report = entry.report or {"methods": []}
    gates = report.get("gates") or ()
    failed = sum(not gate["ok"] for gate in gates)
    unchecked = sum(is_unchecked(gate) for gate in gates)
    met = len(gates) - failed - unchecked
    return {
        "package": name(entry.package, href=entry.page),
        "verdict": Cell(entry.outcome, kind=outcome_kind(entry.outcome)),
        "target": text(report.get("target"), kind="whole"),
        **key_figures(report),
        "gates": figure(
            failed if gates else None,
            lambda _: f"{met} of {len(gates)}",
            kind="bad" if failed else "",
            note=f"{unchecked} not checked" if unchecked else "",
        ),
        "methods": figure(len(report["methods"]) if entry.report else None),
    }


def lead(report: Json) -> str:
    """Return the sentences that say what was seen of the package, or how much of it is wrong."""
    methods = report["methods"]
    if not report["ok"]:
        failed = sum(not method["ok"] for method in methods)
        gates = sum(not gate["ok"] for gate in report.get("gates") or ())
        wrong = [f"{failed} of {plural(len(methods), 'method')} failed"] if failed else []
        wrong += [f"{plural(gates, 'gate')} not met"] if gates else []
        return f"{'; '.join(wrong) or plural(len(report['failures']), 'failure')}."
    ran = [method for method in methods if method["runs"] and method["kind"] == "program"]
    unrun = [method for method in methods if method["not_run"]]
    said = [_describe_ran(ran, total=len(methods))] if ran else []
    said += [_describe_unrun(unrun, total=len(methods), none=not ran)] if unrun else []
    said += [f"{left_out}."] if (left_out := describe_left_out(report)) else []
    return " ".join(said)


def _describe_ran(ran: Sequence[Json], total: int) -> str:
    calls = plural(sum(len(method["runs"]) for method in ran), "call")
    who = ran[0]["method"] if len(ran) == 1 and total > 1 else plural(len(ran), "method")
    verb = "gives what its source gives" if len(ran) == 1 else "give what their sources give"
    return f"{who} {verb}, within the limits, in {calls}."


def _describe_unrun(unrun: Sequence[Json], total: int, none: bool) -> str:
    who = unrun[0]["method"] if len(unrun) == 1 and total > 1 else plural(len(unrun), "method")
    reasons = listed(dict.fromkeys(method["not_run"] for method in unrun), _MOST_REASONS)
    where = f"could not be run on this machine ({reasons})."
    if not none:
        return f"{who} {where}"
    declare = "it declares is what its source declares"
    if len(unrun) > 1:
        declare = "they declare is what their sources declare"
    return f"Nothing was run: {who} {where} What {declare}."


def describe_left_out(report: Json) -> str:
    """Say how many methods and input sets there was no time for, and which methods were not asked
    for; "" where there are none."""
    unasked = [m["method"] for m in report["methods"] if UNASKED in m.get("left_out", ())]
    left = [what for method in report["methods"] for what in method.get("left_out", ())]
    left = [what for what in left if what != UNASKED]
    wholly, untimed = left.count(ALL), left.count(LATENCY)
    parts = [plural(wholly, "method")] if wholly else []
    parts += [plural(sets, "input set")] if (sets := len(left) - wholly - untimed) else []
    parts += [f"the latency of {plural(untimed, 'method')}"] if untimed else []
    said = [f"{', '.join(parts)} left out: validate.budget was spent"] if parts else []
    if unasked:
        verb = "was" if len(unasked) == 1 else "were"
        said.append(f"{listed(unasked, _MOST_NAMED)} {verb} not asked for")
    return "; ".join(said)


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
