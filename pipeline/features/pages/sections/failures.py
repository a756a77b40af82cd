"""Failures, and the operators of the model that cause them."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.cells import code, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.report.failures import FailureGroup, group_failures, package_failures
from pipeline.store.errors import listed

_MOST_NAMED = 4  # methods in a row


def section(report: Json) -> ReportSection:
    methods = report["methods"]
    places = report.get("places", {})
    failures = [_row(group, places) for group in group_failures(methods)]
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            subject: str | Cell = "package"
            if gate["method"]:
                subject = name(gate["method"])
            failures.append(_cells(gate["sentence"], subject, gate.get("place")))
    for sentence in package_failures(report):
        failures.append(_cells(sentence, "package", ""))
    culprits: list[Row] = []
    notes: list[str] = []
    for method in methods:
        culprits += [
            _culprit(method, culprit) for culprit in method.get("culprits") or ()
        ]
        notes += method.get("culprit_notes") or ()
    return ReportSection(
        "failures",
        "What failed, and where",
        DataTable("failed", "Failures", failures),
        DataTable("culprits", "Where it goes wrong", culprits),
        *notes,
    )


def _row(group: FailureGroup, places: Mapping[str, str]) -> Row:
    place = None
    if len(group.methods) == 1:
        place = places.get(f"methods.{group.methods[0]}")
    return _cells(
        group.sentence,
        name(listed(group.methods, _MOST_NAMED)),
        place,
    )


def _cells(sentence: str, subject: Cell | str, place: str | None) -> Row:
    return {
        "what failed": Cell(sentence, kind="wide"),
        "of": subject,
        "config": source(place),
    }


def _culprit(method: Json, culprit: Json) -> Row:
    return {
        "method": name(method["method"]),
        "operator": code(culprit["operator"], note=_describe_place(culprit)),
        "module": code(culprit["module"]),
        "what is wrong": Cell(culprit["what"], kind="wide"),
        "source": source(culprit["line"]),
    }


def _describe_place(culprit: Json) -> str:
    """Say what runs a culprit: a delegate or a kernel; "" where that is not known."""
    if culprit["backend"]:
        if culprit["partition"] is None:
            number = ""
        else:
            number = f" {culprit['partition']}"
        return f"in delegate{number} of {culprit['backend']}"
    if culprit.get("kernel"):
        return f"not delegated, kernel {culprit['kernel']}"
    return ""
