"""The reasons why methods are not judged, which the verdicts in the table don't show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report.verdicts import method_verdict
from pipeline.store.errors import listed, plural
from pipeline.store.visible import one_line

_MOST_REASONS = 3
_MOST_METHODS = 4  # per line
_UNJUDGED = "not judged"


def describe_unjudged(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each reason why methods are not judged, and the number of reasons left out.

    Args:
        reports: `report.json` by package.
    """
    reason_to_methods: dict[str, list[str]] = {}
    for package, report in sorted(reports.items()):
        for method in report["methods"]:
            if method_verdict(method) == _UNJUDGED:
                name = f"{package}/{method['method']}"
                for reason in _find_reasons(method):
                    reason_to_methods.setdefault(reason, []).append(name)
    for reason, methods in list(reason_to_methods.items())[:_MOST_REASONS]:
        yield one_line(f"{_UNJUDGED}: {listed(methods, _MOST_METHODS)}: {reason}")
    if (rest := len(reason_to_methods) - _MOST_REASONS) > 0:
        yield f"{_UNJUDGED}: {plural(rest, 'more reason')} in the reports"


def _find_reasons(method: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why the lowering, quantization or export of a method is not judged."""
    if method["verdict"] == _UNJUDGED:
        yield method["verdict_reason"]
    for part in ("quantization", "reference"):
        judged = method.get(part)
        if judged and judged["verdict"] == _UNJUDGED:
            yield judged["reason"]
