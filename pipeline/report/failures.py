"""Puts failures of methods and packages into words, grouped by cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.store.errors import listed, plural

Json = Mapping[str, Any]
_NUMBERS = re.compile(r"\[[^\]]*\]|\([^()]*\)|[+\-−]?\d[\d.,]*(e[+\-−]?\d+)?")
# A line of a model, as `source_lines.SourceLine` formats it.
_LINE = re.compile(r"[^;:(]*  # [^;)]+:\d+(?:, in [^;)]+)?")
_MOST_NAMED = 4


class FailureGroup(NamedTuple):
    """Failures with one cause: the worst in words, the methods, and the number of others."""

    description: str
    methods: tuple[str, ...]
    more: int

    @property
    def sentence(self) -> str:
        if not self.more:
            return self.description
        return f"{self.description} (and {self.more} more like it)"


def group_failures(methods: Iterable[Json]) -> list[FailureGroup]:
    """Group the failures of methods by cause; the one farthest beyond its limit represents each.

    Failures share a cause if they have the same operator, where it is known, and their sentences
    differ only in numbers and lines.
    """
    failures_by_cause: dict[tuple[str, str, str], list[Json]] = {}
    for method in methods:
        culprit = next(iter(method.get("culprits") or ()), {"operator": ""})
        for failure in method["failures"]:
            sentence = _NUMBERS.sub("#", _LINE.sub("", failure["what"]))
            sentence = sentence.replace("values", "value")
            cause = failure.get("about", ""), culprit["operator"], sentence
            failures_by_cause.setdefault(cause, []).append(failure)
    groups: list[FailureGroup] = []
    for failures in failures_by_cause.values():
        worst = max(failures, key=_badness)
        names = tuple(dict.fromkeys(failure["method"] for failure in failures))
        groups.append(FailureGroup(describe_failure(worst), names, len(failures) - 1))
    return groups


def _badness(failure: Json) -> float:
    return float(failure.get("of_limit") or "inf")  # infinity is written as text


def describe_failed(report: Json, folder: str) -> str:
    """Describe in one line what a package failed: the checks, and the first cause."""
    groups = group_failures(report["methods"])
    of_package = package_failures(report)
    cause = report["failures"][0]
    if groups and not of_package:
        cause = f"{listed(groups[0].methods, _MOST_NAMED)}: {groups[0].sentence}"
    causes = len(groups) + len(of_package)
    causes += sum(not gate["ok"] for gate in report.get("gates") or ())
    sentence = f"{', '.join(failed_checks(report))}: {cause}"
    if causes > 1:
        more = plural(causes - 1, "more cause")
        sentence += f" (the report lists {more}: build/{folder}/report.md)"
    return sentence


def describe_failure(failure: Json) -> str:
    """Return the sentence about a method's failure, with its input set and output."""
    where = ", ".join(filter(None, (failure["inputs"], failure["output"])))
    if where:
        return f"{where}: {failure['what']}"
    return failure["what"]


def failed_by_check(method: Json) -> dict[str, list[str]]:
    """Return the failures of a method by check.

    The checks are "interface" (what it declares, and whether it can run), "numerics" (its outputs),
    "quantization", "source" (the source can't serve as a measure) and "reference" (the export
    differs from it).
    """
    checks: dict[str, list[str]] = {}
    for failure in method["failures"]:
        checks.setdefault(_find_check(method, failure), []).append(
            describe_failure(failure)
        )
    return checks


def _find_check(method: Json, failure: Json) -> str:
    subject = failure.get("about")
    if subject in ("quantization", "source", "reference"):
        return str(subject)
    if failure["inputs"] or (method["kind"] == "constant" and method["runs"]):
        return "numerics"
    return "interface"


def failed_checks(report: Json) -> list[str]:
    """Return the names of the checks that a package failed, as in JUnit's test cases."""
    failed = ["package"] if package_failures(report) else []
    for method in report["methods"]:
        failed += failed_by_check(method)
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            failed.append(f"gate {gate['gate']}")
    return list(dict.fromkeys(failed))


def first_culprit(report: Json) -> list[str]:
    """Return a sentence about the first culprit of the first method that has one, if any."""
    for method in report["methods"]:
        for culprit in method.get("culprits") or ():
            return [f"  {method['method']}: {culprit['what']}"]
    return []


def package_failures(report: Json) -> list[str]:
    """Return the failures that belong to neither a method nor a gate."""
    explained = {gate["sentence"] for gate in report.get("gates") or ()}
    for method in report["methods"]:
        for failure in method["failures"]:
            explained.add(f"{method['method']}: {describe_failure(failure)}")
    return [sentence for sentence in report["failures"] if sentence not in explained]
