"""Failures, and the operators of the model that cause them."""

from __future__ import annotations

from pipeline.report.cells import code, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row


def section(report: Json) -> ReportSection:
    methods, places = report["methods"], report.get("places", {})
    found: list[tuple[str, Cell | str, str | None]] = [
        (describe_failure(failure), name(own["method"]), places.get(f"methods.{own['method']}"))
        for own in methods
        for failure in own["failures"]
    ]
    found += [
        (gate["sentence"], name(gate["method"]) if gate["method"] else "package", gate.get("place"))
        for gate in report.get("gates") or ()
        if not gate["ok"]
    ]
    found += [(sentence, "package", "") for sentence in package_failures(report)]
    failures = [
        {"what failed": Cell(what, kind="wide"), "of": of, "config": source(place)}
        for what, of, place in found
    ]
    culprits = [_culprit(own, each) for own in methods for each in own.get("culprits") or ()]
    notes = [note for method in methods for note in method.get("culprit_notes") or ()]
    return ReportSection(
        "failures",
        "What failed, and where",
        DataTable("failed", "Failures", failures),
        DataTable("culprits", "Where it goes wrong", culprits),
        *notes,
    )


def describe_failure(failure: Json) -> str:
    """Return the sentence of a method's failure, with its input set and output."""
    where = ", ".join(filter(None, (failure["inputs"], failure["output"])))
    return f"{where}: {failure['what']}" if where else failure["what"]


def failed_by_check(method: Json) -> dict[str, list[str]]:
    """Return the failures of a method by check: of its interface, that is all that it declares and
    whether it can be run, or of its numerics, the values that it gives."""
    found: dict[str, list[str]] = {}
    for failure in method["failures"]:
        is_value = failure["inputs"] or (method["kind"] == "constant" and method["runs"])
        check = "numerics" if is_value else "interface"
        found.setdefault(check, []).append(describe_failure(failure))
    return found


def failed_checks(report: Json) -> list[str]:
    """Return the names of the checks that a package failed, as JUnit's cases have them."""
    failed = ["package"] if package_failures(report) else []
    failed += [check for method in report["methods"] for check in failed_by_check(method)]
    failed += [f"gate {gate['gate']}" for gate in report.get("gates") or () if not gate["ok"]]
    return list(dict.fromkeys(failed))


def first_culprit(report: Json) -> list[str]:
    """Return the sentence about the first culprit of the first method that has one, if any."""
    return [
        f"  {method['method']}: {culprit['what']}"
        for method in report["methods"]
        for culprit in method.get("culprits") or ()
    ][:1]


def package_failures(report: Json) -> list[str]:
    """Return the failures that are neither of a method nor of a gate."""
    known = {gate["sentence"] for gate in report.get("gates") or ()}
    for method in report["methods"]:
        known.update(f"{method['method']}: {describe_failure(f)}" for f in method["failures"])
    return [sentence for sentence in report["failures"] if sentence not in known]


def _culprit(method: Json, culprit: Json) -> Row:
    runs_in = f"not delegated, kernel {culprit['kernel']}" if culprit.get("kernel") else ""
    if culprit["backend"]:
        number = "" if culprit["partition"] is None else f" {culprit['partition']}"
        runs_in = f"in delegate{number} of {culprit['backend']}"
    return {
        "method": name(method["method"]),
        "operator": code(culprit["operator"], note=runs_in),
        "module": code(culprit["module"]),
        "what is wrong": Cell(culprit["what"], kind="wide"),
        "source": source(culprit["line"]),
    }
