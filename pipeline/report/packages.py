"""Packages: the head of the report of one, and all of them side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote

from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Json, Row
from pipeline.report.events import NOT_BUILT
from pipeline.report.formatting import NOTHING, percent
from pipeline.report.headlines import worst_headline
from pipeline.report.records import ALL, LATENCY, UNASKED, delegated_share, is_unchecked
from pipeline.report.sections.failures import group_failures, package_failures
from pipeline.report.sections.movement import describe_nonfinite
from pipeline.report.sections.reference import describe_referenced, describe_unreferenced
from pipeline.report.verdicts import PASSED, VERDICTS
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_NAMED, _MOST_REASONS = 4, 2  # in a sentence: methods, why they could not be run


class Entry(NamedTuple):
    """A package. `report` is its record, or None; then `error` says why the package could not be
    built, and is empty where it only was not validated yet. `drops` has, by method, the shares of
    nodes delegated in the build before and now, where there are less."""

    package: str
    report: Json | None = None
    error: str = ""
    drops: Mapping[str, Sequence[float]] = MappingProxyType({})

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", NOT_BUILT)

    @property
    def outcome(self) -> str:
        if self.error:
            return NOT_BUILT
        return "not validated" if self.report is None else str(self.report["verdict"])

    @property
    def failures(self) -> list[str]:
        if self.error:
            return [self.error]
        return [] if self.report is None else describe_causes(self.report)

    @property
    def page(self) -> str:
        """Return the link from the page over all packages to that of this one, if it has one."""
        return f"{quote(os.fsencode(self.package))}/report.html" if self.report is not None else ""


# The class of the style that a verdict is shown in: what was not judged is amber, what was not run
# grey.
VERDICT_KINDS = {
    "passed": "good",
    "failed": "bad",
    NOT_BUILT: "bad",
    "not judged": "warn",
}


def describe_causes(report: Json) -> list[str]:
    """Return a sentence for each cause of a failure: of methods, of gates, of the package."""
    causes = [
        f"{listed(group.methods, _MOST_NAMED)}: {group.sentence}"
        for group in group_failures(report["methods"])
    ]
    causes += [gate["sentence"] for gate in report.get("gates") or () if not gate["ok"]]
    return [*causes, *package_failures(report)]


def outcome_kind(verdict: str) -> str:
    """Return the class of the style that a verdict is shown in."""
    return VERDICT_KINDS.get(verdict, "soft")


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sort failed packages first, then those not validated, then by name."""
    return sorted(entries, key=lambda e: (not e.failed, e.report is not None, e.package))


def overall_word(entries: Sequence[Entry]) -> tuple[str, str]:
    """Return the verdict over all packages in a word, and the class of its style."""
    outcomes = {entry.outcome for entry in entries}
    if any(entry.failed for entry in entries):
        return "failed", "bad"
    if outcomes == {"passed"}:
        return "all passed", "good"
    worst = next((each for each in VERDICTS if each in outcomes - {"passed"}), "")
    return (f"some {worst}", outcome_kind(worst)) if worst else ("none failed", "soft")


def overall_verdict(entries: Iterable[Entry]) -> str:
    """Return how many packages there are, and how many of each outcome."""
    outcomes = [entry.outcome for entry in entries]
    known = ("failed", NOT_BUILT, "not run", "not judged", "not validated", "passed")
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
        wrong_in_all = f"{'; '.join(wrong) or plural(len(report['failures']), 'failure')}."
        remarks = [*describe_nonfinite(methods), *describe_unreferenced(methods)]
        return " ".join([wrong_in_all, *remarks])
    sentences = [*_describe_lowering(methods), *_describe_quantization(methods)]
    sentences += describe_referenced(methods)
    unrun = [method for method in methods if method["not_run"]]
    ran = any(method["runs"] and method["kind"] == "program" for method in methods)
    sentences += [_describe_unrun(unrun, total=len(methods), none=not ran)] if unrun else []
    sentences += describe_nonfinite(methods)
    sentences += [f"{left_out}."] if (left_out := describe_left_out(report)) else []
    sentences += describe_unreferenced(methods) if ran else ()
    return " ".join(sentences)


def _describe_lowering(methods: Sequence[Json]) -> Iterator[str]:
    """Yield what was seen of the methods that ran."""
    programs = [method for method in methods if method["kind"] == "program"]
    passed = [m for m in programs if m["verdict"] == PASSED and m["runs"]]
    if passed:
        yield _describe_passed(passed, total=len(methods))
    for method in programs:
        if method["verdict"] == PASSED and method.get("random"):
            yield f"{method['method']} is {method['random']}."
        elif method["verdict"] == "not judged":
            yield f"{method['method']} is not judged: {method['verdict_reason']}."


def _describe_passed(passed: Sequence[Json], total: int) -> str:
    calls = plural(sum(len(method["runs"]) for method in passed), "run")
    if len(passed) == 1:
        who = passed[0]["method"] if total > 1 else "The method"
        what = "quantized program" if passed[0].get("quantized") else "source"
        return f"{who} matches its {what}, within the limits ({calls})."
    who = "Both methods match" if len(passed) == total == 2 else f"{len(passed)} methods match"
    if all(method.get("quantized") for method in passed):
        return f"{who} their quantized programs, within the limits ({calls})."
    lowered = "what they were lowered from" if any(m.get("quantized") for m in passed) else None
    return f"{who} {lowered or 'their sources'}, within the limits ({calls})."


def _describe_quantization(methods: Sequence[Json]) -> Iterator[str]:
    """Yield what is known of quantizations, methods of one reason together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for method in methods:
        if found := method.get("quantization"):
            reasons.setdefault((found["verdict"], found["reason"]), []).append(method["method"])
    for (verdict, reason), names in reasons.items():
        of = "" if len(methods) == 1 else f" of {listed(names, _MOST_NAMED)}"
        word = "passed" if verdict == PASSED else f"is {verdict}"
        yield f"The quantization{of} {word}: {reason}."
    quantized = [method["method"] for method in methods if method.get("source_is_quantized")]
    if quantized:
        whose = listed(quantized, _MOST_NAMED)
        yield f"The source of {whose} is quantized already: nothing compares it with a float one."


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
    worst = worst_headline(report["methods"]) if report["methods"] else None
    figures = worst.figure if worst else ""
    kind = outcome_kind(worst.verdict) if worst and worst.verdict != PASSED else ""
    return {
        "size": figure(total, human_size, note=f"{total or 0:,} bytes"),
        "nodes delegated": figure(share, percent, note=f"of {nodes:,}", bar=share),
        "worst figure": Cell(figures or NOTHING, kind=kind if figures else "soft"),
        "its limit": text(worst.limit if worst else ""),
    }


def known_figures(report: Json) -> dict[str, Cell]:
    return {title: cell for title, cell in key_figures(report).items() if cell.text != NOTHING}
