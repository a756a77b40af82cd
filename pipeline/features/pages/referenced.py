"""Sentences in a report's head that compare exported programs with their references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.report.elements import Json
from pipeline.report.formatting import error
from pipeline.report.references import (
    MOST_NAMED,
    UNREFERENCED,
    describe_limits,
    is_unreferenced,
)
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import listed, plural


def describe_referenced(methods: Sequence[Json]) -> Iterator[str]:
    """Yield sentences on the comparisons of methods that have a reference."""
    references = {m["method"]: m["reference"] for m in methods if m.get("reference")}
    passed = [
        reference for reference in references.values() if reference["verdict"] == PASSED
    ]
    if passed:
        yield _describe_passed(passed)
    for name, reference in references.items():
        verdict = reference["verdict"]
        if verdict in ("not judged", "not run"):
            yield f"The export of {name} is {verdict}: {reference['reason']}."
        elif verdict == PASSED and (limits := describe_limits(reference)):
            yield f"The export of {name} must be within {limits} of its reference."


def _describe_passed(passed: Sequence[Json]) -> str:
    calls = 0
    kinds: dict[str, None] = {}  # in order
    worst = 0.0
    for reference in passed:
        calls += reference["calls"]
        for origin in reference["compared"]:
            kinds[_kind(origin)] = None
        if isinstance(reference["max_abs"], int | float):
            worst = max(worst, reference["max_abs"])
    near = "exactly"
    if worst:
        near = f"within {error(worst)}"
    number = plural(calls, "call")
    return f"The exported program matches {' and '.join(kinds)} {near} ({number})."


def describe_unreferenced(methods: Sequence[Json]) -> Iterator[str]:
    """Yield a sentence that names the methods without a reference, if there are any."""
    programs = [method for method in methods if method["kind"] == "program"]
    lacking = [method["method"] for method in programs if is_unreferenced(method)]
    if len(lacking) == len(programs) and lacking:
        yield f"Judged {UNREFERENCED}."
    elif lacking:
        yield f"{listed(lacking, MOST_NAMED)}: {UNREFERENCED}."


def _kind(origin: str) -> str:
    if origin.startswith("golden/"):  # the folder of files of recorded outputs
        return "recorded outputs"
    return "PyTorch in eager mode"
