"""Failures, and the operators of the model that cause them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.report.cells import code, name, source
from pipeline.report.elements import Cell, DataTable, Json, ReportSection, Row
from pipeline.store.errors import listed, plural

_NUMBERS = re.compile(r"\[[^\]]*\]|\([^()]*\)|[+\-−]?\d[\d.,]*(e[+\-−]?\d+)?")
# A line of a model, as `source_lines.SourceLine` is written.
_LINE = re.compile(r"[^;:(]*  # [^;)]+:\d+(?:, in [^;)]+)?")
_MOST_NAMED = 4


class FailureGroup(NamedTuple):
    """Failures of one cause: the worst of them in words, the methods, and how many others."""

    what: str
    methods: tuple[str, ...]
    others: int

    @property
    def sentence(self) -> str:
        return self.what + (f" (and {self.others} more like it)" if self.others else "")


def section(report: Json) -> ReportSection:
    methods, places = report["methods"], report.get("places", {})
    failures = [_row(group, places) for group in group_failures(methods)]
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            of = name(gate["method"]) if gate["method"] else "package"
            failures.append(_cells(gate["sentence"], of, gate.get("place")))
    failures += [_cells(sentence, "package", "") for sentence in package_failures(report)]
    culprits = [
        _culprit(method, culprit) for method in methods for culprit in method.get("culprits") or ()
    ]
    notes = [note for method in methods for note in method.get("culprit_notes") or ()]
    return ReportSection(
        "failures",
        "What failed, and where",
        DataTable("failed", "Failures", failures),
        DataTable("culprits", "Where it goes wrong", culprits),
        *notes,
    )


def _row(group: FailureGroup, places: Mapping[str, str]) -> Row:
    of = name(listed(group.methods, _MOST_NAMED))
    place = places.get(f"methods.{group.methods[0]}") if len(group.methods) == 1 else None
    return _cells(group.sentence, of, place)


def _cells(what: str, of: Cell | str, place: str | None) -> Row:
    return {"what failed": Cell(what, kind="wide"), "of": of, "config": source(place)}


def group_failures(methods: Iterable[Json]) -> list[FailureGroup]:
    """Group the failures of methods by cause: those that one operator causes, where that is known,
    and whose sentences differ in numbers and lines alone. The one farthest beyond its limit stands
    for its group."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for method in methods:
        culprit = next(iter(method.get("culprits") or ()), {"operator": ""})
        for failure in method["failures"]:
            cause = _NUMBERS.sub("#", _LINE.sub("", failure["what"])).replace("values", "value")
            key = failure.get("about", ""), culprit["operator"], cause
            groups.setdefault(key, []).append(failure)
    failure_groups = []
    for failures in groups.values():
        worst = max(failures, key=_badness)
        names = tuple(dict.fromkeys(failure["method"] for failure in failures))
        failure_groups.append(FailureGroup(describe_failure(worst), names, len(failures) - 1))
    return failure_groups


def _badness(failure: Json) -> float:
    ratio = failure.get("of_limit")
    return float(ratio) if isinstance(ratio, int | float) else float("inf")


def describe_failed(report: Json, folder: str) -> str:
    """Describe in one line what a package failed: the checks, and the first cause."""
    groups = group_failures(report["methods"])
    first = report["failures"][0]
    if groups and not package_failures(report):
        methods = listed(groups[0].methods, _MOST_NAMED)
        first = f"{methods}: {groups[0].sentence}"
    causes = len(groups) + len(package_failures(report))
    causes += sum(not gate["ok"] for gate in report.get("gates") or ())
    more = f" (and {plural(causes - 1, 'more cause')} in {folder}/report.md)" if causes > 1 else ""
    return f"{', '.join(failed_checks(report))}: {first}{more}"


def describe_failure(failure: Json) -> str:
    """Return the sentence of a method's failure, with its input set and output."""
    where = ", ".join(filter(None, (failure["inputs"], failure["output"])))
    return f"{where}: {failure['what']}" if where else failure["what"]


def failed_by_check(method: Json) -> dict[str, list[str]]:
    """Return the failures of a method by check: of its interface, that is all that it declares and
    whether it can be run, of its numerics, the values that it gives, of its quantization, of its
    source, that it is no measure of anything, or of its reference, which its export departs
    from."""
    checks: dict[str, list[str]] = {}
    for failure in method["failures"]:
        if (about := failure.get("about")) in ("quantization", "source", "reference"):
            checks.setdefault(about, []).append(describe_failure(failure))
            continue
        is_value = failure["inputs"] or (method["kind"] == "constant" and method["runs"])
        check = "numerics" if is_value else "interface"
        checks.setdefault(check, []).append(describe_failure(failure))
    return checks


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
    explained = {gate["sentence"] for gate in report.get("gates") or ()}
    for method in report["methods"]:
        explained.update(f"{method['method']}: {describe_failure(f)}" for f in method["failures"])
    return [sentence for sentence in report["failures"] if sentence not in explained]


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
