"""The section on failures, and the operators of the model that cause them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.features.pages.codes import add_code
from pipeline.features.pages.fixes import fix_failure, fix_gate
from pipeline.report.cells import code, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.failures import FailureGroup, group_failures, package_failures
from pipeline.report.formatting import NOTHING
from pipeline.store.errors import listed

_MOST_NAMED = 4  # methods in a row
_NO_FIX = Cell(NOTHING, kind="soft")
# Words in a failure's sentence, and the key of the limit that it exceeds.
_LIMITS = {
    "mean absolute error": "max_mean_abs",
    "99.9th percentile": "max_p999_abs",
    "relative error": "max_relative",
    "SQNR": "min_sqnr",
    "cosine": "min_cosine",
    "agreement": "min_agreement",
    "absolute error": "atol",
}


def section(report: Json) -> ReportSection:
    methods = report["methods"]
    places = report.get("places", {})
    failures = [_row(group, places, report) for group in group_failures(methods)]
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            subject: str | Cell = "package"
            if gate["method"]:
                subject = name(gate["method"])
            fix = fix_gate(report, gate)
            failures.append(_cells(gate["sentence"], subject, gate.get("place"), fix))
    metrics = {row["sentence"]: row for row in report.get("metrics") or ()}
    for sentence in package_failures(report):
        subject, place = "package", ""
        if sentence in metrics:
            subject = name(metrics[sentence]["method"])
            place = metrics[sentence].get("place", "")
        failures.append(_cells(sentence, subject, place))
    if all(row["fix"] == _NO_FIX for row in failures):
        failures = [_without_fix(row) for row in failures]
    culprits = list(_culprits(methods))
    notes: list[str] = []
    for method in methods:
        notes += method.get("culprit_notes") or ()
    return ReportSection(
        "failures",
        "What failed, and where",
        DataTable("failed", "Failures", failures),
        DataTable("culprits", "Where it goes wrong", culprits),
        *notes,
    )


def _row(group: FailureGroup, places: Mapping[str, str], report: Json) -> Row:
    return _cells(
        group.sentence,
        name(listed(group.methods, _MOST_NAMED)),
        _find_place(group, places),
        fix_failure(report, group),
    )


def _find_place(group: FailureGroup, places: Mapping[str, str]) -> str | None:
    """Return the config line that sets the exceeded limit, or the line of the method.

    The line of the method needs a failure of a single method. Returns None if neither is recorded.
    """
    keys = []
    for words, key in _LIMITS.items():
        if words in group.description:
            keys += [f"methods.{method}.{key}" for method in group.methods] + [key]
    for key in keys:
        if place := places.get(f"validate.{key}"):
            return place
    if len(group.methods) == 1:
        return places.get(f"methods.{group.methods[0]}")
    return None


def _cells(sentence: str, subject: Cell | str, place: str | None, fix: str = "") -> Row:
    return {
        "what failed": Cell(add_code(sentence), kind="wide"),
        "of": subject,
        "config": source(place),
        "fix": Cell(fix, kind="fix") if fix else _NO_FIX,
    }


def _without_fix(row: Row) -> Row:
    return {column: cell for column, cell in row.items() if column != "fix"}


def _culprits(methods: Sequence[Json]) -> Iterator[Row]:
    """Yield a row for each culprit, shared by all methods that have it."""
    names: dict[str, list[str]] = {}
    culprits: dict[str, Json] = {}
    for method in methods:
        for culprit in method.get("culprits") or ():
            words = {**culprit, "error": None}
            key = repr(sorted(words.items(), key=lambda entry: entry[0]))
            culprits.setdefault(key, culprit)
            names.setdefault(key, []).append(method["method"])
    for key, culprit in culprits.items():
        yield _culprit(names[key], culprit)


def _culprit(methods: Sequence[str], culprit: Json) -> Row:
    return {
        "method": name(listed(methods, _MOST_NAMED)),
        "operator": code(culprit["operator"], note=_describe_place(culprit)),
        "module": code(culprit["module"]),
        "what is wrong": Cell(culprit["what"], kind="wide"),
        "source": source(culprit["line"]),
    }


def _describe_place(culprit: Json) -> str:
    """Return the delegate or kernel that runs a culprit, or "" if it isn't known."""
    if culprit["backend"]:
        if culprit["partition"] is None:
            number = ""
        else:
            number = f" {culprit['partition']}"
        return f"in delegate{number} of {culprit['backend']}"
    if culprit.get("kernel"):
        return f"not delegated, kernel {culprit['kernel']}"
    return ""
