"""Puts a package into words: its outcome, why it failed, and what was left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from pipeline.report.events import NOT_BUILT
from pipeline.report.failures import group_failures, package_failures
from pipeline.report.method_records import ALL, LATENCY, UNASKED
from pipeline.store.errors import listed, plural

Json = Mapping[str, Any]
_MOST_NAMED = 4  # methods in a sentence


class Entry(NamedTuple):
    """A package and its record.

    Attributes:
        report: its record, or None.
        error: why the package could not be built or validated, after the kind of the action that
            failed; "" if it only has not been validated yet.
        drops: by method whose share of delegated nodes decreased, the share in the previous build
            and the share now.
        history: its figures at earlier commits, oldest first.
    """

    package: str
    report: Json | None = None
    error: str = ""
    drops: Mapping[str, Sequence[float]] = MappingProxyType({})
    history: Sequence[Json] = ()

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", NOT_BUILT)

    @property
    def outcome(self) -> str:
        if self.error:
            return "failed" if self.error.startswith("validate ") else NOT_BUILT
        if self.report is None:
            return "not validated"
        return str(self.report["verdict"])

    @property
    def failures(self) -> list[str]:
        if self.error:
            return [self.error]
        if self.report is None:
            return []
        return describe_causes(self.report)

    @property
    def page(self) -> str:
        """The link from the overview page to this package's page, or "" if it has none."""
        if self.report is not None:
            return f"{quote(os.fsencode(self.package))}/report.html"
        return ""


def describe_causes(report: Json) -> list[str]:
    """Return a sentence for each cause of failure, in methods, gates or the package itself."""
    causes: list[str] = []
    for group in group_failures(report["methods"]):
        causes.append(f"{listed(group.methods, _MOST_NAMED)}: {group.sentence}")
    for gate in report.get("gates") or ():
        if not gate["ok"]:
            causes.append(gate["sentence"])
    causes += package_failures(report)
    return causes


def describe_left_out(report: Json) -> str:
    """Describe how many methods and input sets the budget left out, and which were not requested.

    Returns "" if nothing was left out.
    """
    unasked: list[str] = []
    left_out: Counter[str] = Counter()
    for method in report["methods"]:
        parts = method.get("left_out", ())
        if UNASKED in parts:
            unasked.append(method["method"])
        left_out.update(parts)
    sentences: list[str] = []
    counts = _count_left_out(left_out)
    if counts:
        sentences.append(f"{', '.join(counts)} left out: validate.budget was exhausted")
    if unasked:
        verb = "were"
        if len(unasked) == 1:
            verb = "was"
        sentences.append(f"{listed(unasked, _MOST_NAMED)} {verb} not requested")
    return "; ".join(sentences)


def _count_left_out(left_out: Counter[str]) -> list[str]:
    """Return the counts of methods, input sets and latencies for which the budget left no time."""
    wholly = left_out[ALL]
    untimed = left_out[LATENCY]
    sets = left_out.total() - wholly - untimed - left_out[UNASKED]
    counts: list[str] = []
    if wholly:
        counts.append(plural(wholly, "method"))
    if sets:
        counts.append(plural(sets, "input set"))
    if untimed:
        counts.append(f"the latency of {plural(untimed, 'method')}")
    return counts


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sort failed packages first, then those not validated, then by name."""
    return sorted(
        entries,
        key=lambda e: (not e.failed, e.report is not None, e.package),
    )
