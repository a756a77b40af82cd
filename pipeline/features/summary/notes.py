"""Remarks on the packages that a run made, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.features.summary.unjudged import describe_unjudged
from pipeline.features.summary.unwritten import find_unknown_names, find_unwritten
from pipeline.moments import show_error
from pipeline.plan.plan import Plan
from pipeline.report.events import DONE, Event
from pipeline.report.formatting import percent, size_range
from pipeline.report.packages import describe_left_out
from pipeline.report.records import read_drops, read_fitting, read_manifest
from pipeline.report.references import UNREFERENCED, describe_limits, is_unreferenced
from pipeline.report.verdicts import Verdict, is_accepted
from pipeline.store.errors import listed
from pipeline.store.files import CONTENTS, REPORT
from pipeline.store.remedies import range_remedy
from pipeline.store.visible import one_line

_MOST_UNREFERENCED = 4
_UNSETTLED: tuple[Verdict, ...] = ("not run", "not judged")


def describe_linked(plan: Plan, events: Sequence[Event]) -> Iterator[str]:
    """Yield a warning for each way in which a linked package may fall short of its config."""
    linked = {str(e.package) for e in events if e.kind == "link" and e.outcome in DONE}
    for package in sorted(linked):
        if manifest := read_manifest(plan.workspace, package):
            yield from _dropped(plan, package)
            yield from _warnings(package, manifest["methods"])
            yield from _narrowed(package, manifest["methods"])
            yield from warn_of_quantization(package, manifest["methods"])
            unknown = find_unknown_names(manifest["methods"])
            contents = read_fitting(plan.workspace.package(package) / CONTENTS)
            tensors = contents["tensors"] if contents else None
            unwritten = find_unwritten(manifest["emit"], manifest["files"], tensors)
            for remark in (*unknown, *unwritten):
                yield _with_code(f"{package}: {remark}")


def _with_code(warning: str) -> str:
    """Return a warning on one line, with its code."""
    return show_error(one_line(warning), "warning")


def _dropped(plan: Plan, package: str) -> Iterator[str]:
    """Yield a line for each method that delegates less than in the last build."""
    for method, (was, now) in sorted(read_drops(plan.workspace, package).items()):
        yield _with_code(
            f"{package}/{method}: warning: {percent(now)} of nodes delegated, {percent(was)} in "
            "the last build"
        )


def _warnings(package: str, methods: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each warning of a lowering, with the methods that it concerns."""
    about: dict[str, list[str]] = {}
    for method, facts in sorted(methods.items()):
        for warning in facts.get("warnings", ()):
            place = " in ".join(filter(None, (warning["operator"], warning["module"])))
            text = f"{place}: {warning['what']}" if place else warning["what"]
            about.setdefault(text, []).append(method)
    for text, names in about.items():
        yield _with_code(f"{package}/{listed(names, 3)}: warning: {text}")


def _narrowed(package: str, methods: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each size whose range is narrower in the package than in its source."""
    for method, facts in sorted(methods.items()):
        keeps = facts["lowering"].get("edge", {}).get("keep_ranges", False)
        for size in facts.get("narrowed", ()):
            by = " in ".join(filter(None, (size["operator"], size["module"])))
            yield _with_code(
                f"{package}/{method}: {size['size']} is lowered for "
                f"{size_range(size['lowered'])}, but its source accepts "
                f"{size_range(size['source'])}"
                + (f"; narrowed by {by}" if by else "")
                + f"; {range_remedy(size['operator'], size['lowered'], keeps)}"
            )


def warn_of_quantization(package: str, methods: Mapping[str, Any]) -> Iterator[str]:
    """Yield the warnings of a package's quantized methods."""
    for method, facts in sorted(methods.items()):
        for warning in facts.get("quantization", {}).get("warnings", ()):
            yield _with_code(f"{package}/{method}: {warning}")


def describe_validated(plan: Plan, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line for each remark on the validations of this run.

    Each validation that was cut short, each method that is held to limits of its reference, and
    each reason why methods are not run or not judged (unless that is allowed) has a line. All
    methods that were compared only with their exported programs share one.
    """
    unreferenced: list[str] = []
    reports: dict[str, Mapping[str, Any]] = {}
    validated = set()
    for event in events:
        # The report of a package that was not validated is from an earlier run.
        if event.kind == "validate" and event.outcome != "not-run":
            validated.add(str(event.package))
    for package in sorted(validated):
        report = read_fitting(plan.workspace.package(package) / REPORT)
        if not report:
            continue
        reports[package] = report
        if left_out := describe_left_out(report):
            yield f"{package}: {left_out}"
        methods = [
            method["method"] for method in report["methods"] if is_unreferenced(method)
        ]
        unreferenced += [f"{package}/{method}" for method in methods]
        for method in report["methods"]:
            if limits := describe_limits(
                method.get("reference") or {}, report.get("places")
            ):
                yield one_line(
                    f"{package}/{method['method']}: held to {limits} of its reference"
                )
    for verdict in _UNSETTLED:
        refused = {
            package: report
            for package, report in reports.items()
            if not _is_allowed(plan, package, verdict)
        }
        yield from describe_unjudged(verdict, refused)
    if unreferenced:
        yield one_line(f"{UNREFERENCED}: {listed(unreferenced, _MOST_UNREFERENCED)}")


def _is_allowed(plan: Plan, package: str, verdict: Verdict) -> bool:
    """Return whether a package with this verdict is accepted."""
    facts = plan.workspace.state(package).get("validate", {})
    allowed = (*facts.get("allow", ()), *plan.workspace.allow)
    return is_accepted(verdict, allowed)
