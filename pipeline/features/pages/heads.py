"""The head of a package's report, and the table of all packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipeline.features.pages.method_list import find_headline
from pipeline.features.pages.referenced import (
    describe_referenced,
    describe_unreferenced,
)
from pipeline.features.pages.sections.movement import describe_nonfinite
from pipeline.report.cells import figure, name, text
from pipeline.report.elements import Cell, DataTable, Json, Row
from pipeline.report.events import NOT_BUILT
from pipeline.report.formatting import NOTHING, percent
from pipeline.report.packages import Entry, describe_left_out
from pipeline.report.records import delegated_share, is_unchecked
from pipeline.report.verdicts import PASSED, VERDICTS, Verdict
from pipeline.store.errors import listed, plural
from pipeline.store.sizes import human_size

_MOST_NAMED, _MOST_REASONS = 4, 2  # in a sentence: methods, reasons why they didn't run
_OUTCOMES = ("failed", NOT_BUILT, "not run", "not judged", "not validated", "passed")


# The CSS class of each verdict: "not judged" is amber, and verdicts that aren't listed here ("not
# run") are grey.
VERDICT_KINDS = {
    "passed": "good",
    "failed": "bad",
    NOT_BUILT: "bad",
    "not judged": "warn",
}


def outcome_kind(verdict: str) -> str:
    """Return the CSS class of a verdict."""
    return VERDICT_KINDS.get(verdict, "soft")


def overall_word(entries: Sequence[Entry]) -> tuple[str, str]:
    """Return the overall verdict on all packages, in a word or two, and its CSS class."""
    outcomes = {entry.outcome for entry in entries}
    if any(entry.failed for entry in entries):
        return "failed", "bad"
    if outcomes == {"passed"}:
        return "all passed", "good"
    for verdict in VERDICTS:
        if verdict != "passed" and verdict in outcomes:
            return f"some {verdict}", outcome_kind(verdict)
    return "none failed", "soft"


def overall_verdict(entries: Iterable[Entry]) -> str:
    """Return a summary of all packages: how many there are, and how many have each outcome."""
    outcomes = [entry.outcome for entry in entries]
    if not outcomes:
        return "no packages"
    counts: list[str] = []
    for outcome in _OUTCOMES:
        if outcome in outcomes:
            counts.append(f"{outcomes.count(outcome)} {outcome}")
    return f"{plural(len(outcomes), 'package')}: {', '.join(counts)}"


def table(entries: Iterable[Entry]) -> DataTable:
    """Return the table of all packages, a row for each."""
    return DataTable(
        "packages",
        "Packages",
        [_row(entry) for entry in entries],
        brief=10_000,
    )


def _row(entry: Entry) -> Row:
    report = entry.report or {"methods": []}
    number_of_methods = None
    if entry.report:
        number_of_methods = len(report["methods"])
    return {
        "package": name(entry.package, href=entry.page),
        "verdict": Cell(entry.outcome, kind=outcome_kind(entry.outcome)),
        "target": text(report.get("target"), kind="whole"),
        **key_figures(report),
        "gates": _count_gates(report.get("gates") or ()),
        "methods": figure(number_of_methods),
    }


def _count_gates(gates: Sequence[Json]) -> Cell:
    """Return the cell that counts the gates met, sorted by the number of failed gates."""
    if not gates:
        return figure(None)
    failed = sum(not gate["ok"] for gate in gates)
    unchecked = sum(is_unchecked(gate) for gate in gates)
    met = len(gates) - failed - unchecked
    notes = [name_gate(gate) for gate in gates if not gate["ok"]]
    if unchecked:
        notes.append(f"{unchecked} not checked")
    return figure(
        failed,
        lambda _: f"{met} of {len(gates)}",
        kind="bad" if failed else "",
        note=listed(notes, _MOST_NAMED),
    )


def name_gate(gate: Json) -> str:
    """Return the name of a gate, with its method if it has one."""
    if gate["method"]:
        return f"{gate['gate']} of {gate['method']}"
    return str(gate["gate"])


def lead(report: Json) -> str:
    """Return the sentences that sum up a package's validation, or its failures if it isn't OK."""
    methods = report["methods"]
    if not report["ok"]:
        sentences = [_describe_wrong(report)]
        sentences += describe_nonfinite(methods)
        sentences += describe_unreferenced(methods)
        return " ".join(sentences)
    sentences = [*_describe_lowering(methods), *_describe_quantization(methods)]
    sentences += describe_referenced(methods)
    unrun = [method for method in methods if method["not_run"]]
    ran = any(method["runs"] and method["kind"] == "program" for method in methods)
    if unrun:
        sentences.append(_describe_unrun(unrun, total=len(methods), none=not ran))
    sentences += describe_nonfinite(methods)
    left_out = describe_left_out(report)
    if left_out:
        sentences.append(f"{left_out}.")
    if ran:
        sentences += describe_unreferenced(methods)
    return " ".join(sentences)


def _describe_wrong(report: Json) -> str:
    """Return a sentence with the number of failed methods and of gates not met."""
    methods = report["methods"]
    failed = sum(not method["ok"] for method in methods)
    unmet = sum(not gate["ok"] for gate in report.get("gates") or ())
    counts: list[str] = []
    if failed:
        counts.append(f"{failed} of {plural(len(methods), 'method')} failed")
    if unmet:
        counts.append(f"{plural(unmet, 'gate')} not met")
    if not counts:
        counts.append(plural(len(report["failures"]), "failure"))
    return f"{'; '.join(counts)}."


def _describe_lowering(methods: Sequence[Json]) -> Iterator[str]:
    """Yield sentences on the methods that ran."""
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
    runs = sum(len(method["runs"]) for method in passed)
    within = f"within the limits ({plural(runs, 'run')})."
    quantized = sum(bool(method.get("quantized")) for method in passed)
    if len(passed) == 1:
        subject = "The method"
        if total > 1:
            subject = passed[0]["method"]
        program = "source"
        if quantized:
            program = "quantized program"
        return f"{subject} matches its {program}, {within}"
    subject = f"{len(passed)} methods"
    if len(passed) == total == 2:
        subject = "Both methods"
    if quantized == len(passed):
        programs = "their quantized programs"
    elif quantized:
        programs = "what they were lowered from"
    else:
        programs = "their sources"
    return f"{subject} match {programs}, {within}"


def _describe_quantization(methods: Sequence[Json]) -> Iterator[str]:
    """Yield sentences on quantization: one per verdict and reason, with its methods."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    already_quantized: list[str] = []
    for method in methods:
        quantization = method.get("quantization")
        if quantization:
            subject = "The quantization"
            if quantization.get("writers"):  # it is a float method
                subject = "The accuracy"
            outcome = subject, quantization["verdict"], quantization["reason"]
            reasons.setdefault(outcome, []).append(method["method"])
        if method.get("source_is_quantized"):
            already_quantized.append(method["method"])
    for (subject, verdict, reason), names in reasons.items():
        if len(methods) > 1:
            subject += f" of {listed(names, _MOST_NAMED)}"
        if verdict == PASSED:
            word = "passed"
        else:
            word = f"is {verdict}"
        yield f"{subject} {word}: {reason}."
    if already_quantized:
        sources = f"The source of {listed(already_quantized, _MOST_NAMED)}"
        yield f"{sources} is already quantized, so there is no float source to compare it with."


def _describe_unrun(unrun: Sequence[Json], total: int, none: bool) -> str:
    subject = plural(len(unrun), "method")
    if len(unrun) == 1 and total > 1:
        subject = unrun[0]["method"]
    reasons = dict.fromkeys(method["not_run"] for method in unrun)
    sentence = f"{subject} could not be run on this machine ({listed(reasons, _MOST_REASONS)})."
    if not none:
        return sentence
    declare = "Its declared inputs and outputs match its source's"
    if len(unrun) > 1:
        declare = "Their declared inputs and outputs match their sources'"
    return f"Nothing was run: {sentence} {declare}."


def about(report: Json) -> str:
    parts = []
    for field in ("model", "target"):
        if report.get(field):
            parts.append(f"{field} {report[field]}")
    return ", ".join(parts)


def key_figures(report: Json) -> dict[str, Cell]:
    """Return the figures by which packages are compared."""
    delegations = (report.get("delegation") or {}).values()
    nodes = sum(delegation["nodes"] for delegation in delegations)
    share = delegated_share(delegations)
    sizes = report.get("sizes")
    total = None
    if sizes:
        total = sum(sizes.values())
    verdict, worst, limit, _ = find_headline(report["methods"])
    return {
        "size": figure(total, human_size, note=f"{total or 0:,} bytes"),
        "nodes delegated": figure(share, percent, note=f"of {nodes:,}", bar=share),
        "worst figure": _worst_figure(worst, verdict),
        "its limit": text(limit),
    }


def _worst_figure(worst: str, verdict: Verdict) -> Cell:
    if not worst:
        return Cell(NOTHING, kind="soft")
    if verdict == PASSED:
        kind = ""
    else:
        kind = outcome_kind(verdict)
    return Cell(worst, kind=kind)


def known_figures(report: Json) -> dict[str, Cell]:
    figures = key_figures(report)
    if figures["worst figure"].text == NOTHING:
        del figures["its limit"]
    return {title: cell for title, cell in figures.items() if cell.text != NOTHING}
