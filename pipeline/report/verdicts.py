"""Verdicts: the result of a validation, as one of four words.

`passed`: compared with the source, within meaningful limits. `failed`: it exceeds them. `not
judged`: it ran, but nothing shows whether that is good enough. `not run`: nothing was compared.
This module doesn't import torch, since a no-op run reads verdicts too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pipeline.store.states import Verdict as Verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # worst first
PASSED: Verdict = "passed"


def worst_verdict(verdicts: Iterable[Verdict], default: Verdict = PASSED) -> Verdict:
    """Return the worst of several verdicts."""
    return min(verdicts, key=VERDICTS.index, default=default)


def method_verdicts(method: Mapping[str, Any]) -> list[Verdict]:
    """Return the verdicts on a method's lowering and, if any, on its quantization and export."""
    others = [method.get(name) for name in ("quantization", "reference")]
    return [method["verdict"], *(other["verdict"] for other in others if other)]


def method_verdict(method: Mapping[str, Any]) -> Verdict:
    """Return the worst of a method's verdicts."""
    return worst_verdict(method_verdicts(method))


def package_verdict(report: Mapping[str, Any]) -> Verdict:
    """Return the worst verdict of a package's requested methods, its gates and its files."""
    if not report["ok"]:
        return "failed"
    asked = report.get("only")
    methods = [m for m in report["methods"] if asked is None or m["method"] in asked]
    return worst_verdict(map(method_verdict, methods))


def is_accepted(verdict: Verdict, allowed: Iterable[str]) -> bool:
    """Return whether a verdict ends a build successfully: it is passed, or is allowed."""
    return verdict == PASSED or verdict.replace(" ", "-") in allowed
