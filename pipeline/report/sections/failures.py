"""Failures, and the operators of the model that cause them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.report.cells import code, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row


def section(report: Json) -> ReportSection:
    culprits = [_culprit(method, each) for method in report["methods"] for each in _found(method)]
    notes = [note for method in report["methods"] for note in method.get("culprit_notes") or ()]
    return ReportSection(
        "failures",
        "What failed, and where",
        DataTable("failed", "Failures", list(_failures(report))),
        DataTable("culprits", "Where it goes wrong", culprits),
        *notes,
    )


def describe_failure(failure: Json) -> str:
    """Return the sentence of a method's failure, with its input set and output."""
    where = ", ".join(filter(None, (failure["inputs"], failure["output"])))
    return f"{where}: {failure['what']}" if where else failure["what"]


def package_failures(report: Json) -> list[str]:
    """Return the failures that are neither of a method nor of a gate."""
    known = {gate["sentence"] for gate in report.get("gates") or ()}
    for method in report["methods"]:
        known.update(f"{method['method']}: {describe_failure(f)}" for f in method["failures"])
    return [sentence for sentence in report["failures"] if sentence not in known]


def _failures(report: Json) -> Iterator[Row]:
    for method in report["methods"]:
        place = report.get("places", {}).get(f"methods.{method['method']}", "")
        for failure in method["failures"]:
            yield _failure(describe_failure(failure), method["method"], place)
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            yield _failure(gate["sentence"], gate["method"], gate.get("place"))
    yield from map(_failure, package_failures(report))


def _failure(what: str, method: str | None = None, place: str | None = "") -> Row:
    failed = name(method) if method else "package"
    return {"what failed": Cell(what, kind="wide"), "of": failed, "set in": source(place)}


def _found(method: Json) -> list[Json]:
    return method.get("culprits") or []


def _culprit(method: Json, culprit: Json) -> Row:
    return {
        "method": name(method["method"]),
        "operator": code(culprit["operator"], note=_runs_in(culprit)),
        "module": code(culprit["module"]),
        "what is wrong": Cell(culprit["what"], kind="wide"),
        "source": source(culprit["line"]),
    }


def _runs_in(culprit: Json) -> str:
    if culprit["backend"]:
        number = "" if culprit["partition"] is None else f" {culprit['partition']}"
        return f"in delegate{number} of {culprit['backend']}"
    return "on a portable kernel" if culprit["kind"] == "operator" else ""
