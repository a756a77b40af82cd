"""The reasons why methods are not judged or not run, which the table doesn't show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report.verdicts import method_verdict
from pipeline.store.errors import listed, plural
from pipeline.store.visible import one_line

_MOST_REASONS = 3
_MOST_METHODS = 4  # per line


def describe_unjudged(
    verdict: str, reports: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Yield a line for each reason for a verdict, and the number of reasons left out.

    Args:
        verdict: `not judged` or `not run`.
        reports: `report.json` by package.
    """
    reason_to_methods: dict[str, list[str]] = {}
    for package, report in sorted(reports.items()):
        for method in _find_methods(report, verdict):
            name = f"{package}/{method['method']}"
            for reason in _find_reasons(method, verdict):
                reason_to_methods.setdefault(reason, []).append(name)
    for reason, methods in list(reason_to_methods.items())[:_MOST_REASONS]:
        yield one_line(f"{verdict}: {listed(methods, _MOST_METHODS)}: {reason}")
    if (rest := len(reason_to_methods) - _MOST_REASONS) > 0:
        yield f"{verdict}: {plural(rest, 'more reason')} in the reports"


def _find_methods(
    report: Mapping[str, Any], verdict: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the methods of a report with a verdict, if their validation was requested."""
    requested = report.get("only")
    for method in report["methods"]:
        is_requested = requested is None or method["method"] in requested
        if is_requested and method_verdict(method) == verdict:
            yield method


def _find_reasons(method: Mapping[str, Any], verdict: str) -> Iterator[str]:
    """Yield the reasons for a verdict on the lowering, quantization or export of a method."""
    if method["verdict"] == verdict and method.get("verdict_reason"):
        yield method["verdict_reason"]
    for part in ("quantization", "reference"):
        judged = method.get(part)
        if judged and judged["verdict"] == verdict:
            yield judged["reason"]
