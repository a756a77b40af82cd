"""Packages in the reports over all of them, and the figures by which packages are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pipeline.report.elements import Json
from pipeline.report.formatting import sort_key
from pipeline.store.errors import plural


class Entry(NamedTuple):
    """A package. `report` is its record, or None; then `error` says why the package could not be
    built, and is empty where it only was not validated yet."""

    package: str
    report: Json | None = None
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error) or (self.report is not None and not self.report["ok"])

    @property
    def outcome(self) -> str:
        if self.error:
            return "not built"
        if self.report is None:
            return "not validated"
        return "passed" if self.report["ok"] else "failed"

    @property
    def failures(self) -> list[str]:
        if self.error:
            return [self.error]
        return list(self.report["failures"]) if self.report is not None else []


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Sort failed packages first, then those not validated, then by name."""
    return sorted(entries, key=lambda e: (not e.failed, e.report is not None, e.package))


def overall_verdict(entries: Iterable[Entry]) -> str:
    """Return how many packages there are, and how many of each outcome."""
    outcomes = [entry.outcome for entry in entries]
    known = ("failed", "not built", "not validated", "passed")
    counts = (f"{outcomes.count(outcome)} {outcome}" for outcome in known if outcome in outcomes)
    return f"{plural(len(outcomes), 'package')}: {', '.join(counts)}" if outcomes else "no packages"


def total_size(report: Json) -> int | None:
    """Return the bytes of all files of a package."""
    sizes = report.get("sizes")
    return sum(sizes.values()) if sizes else None


def _kernel_calls(counts: Json) -> int:
    """Count calls of backends' own kernels in a method; they count as delegated."""
    return sum(sum(own.values()) for own in counts.get("kernels", {}).values())


def delegated_share(methods: Iterable[Json]) -> float | None:
    """Return the share of methods' nodes that do not run on portable kernels; None without nodes.

    Args:
        methods: delegation records.
    """
    methods = list(methods)
    nodes = sum(counts["nodes"] for counts in methods)
    inside = sum(counts["delegated_nodes"] + _kernel_calls(counts) for counts in methods)
    return inside / nodes if nodes else None


def extreme(
    report: Json, name: str, pick: Callable[..., Json | None]
) -> tuple[float | str | None, str]:
    """Pick the `min` or `max` of a figure over the methods that ran.

    Returns:
        The figure and its method; None and "" where no method has the figure.
    """
    ran = [method for method in report["methods"] if method["runs"] and method[name] is not None]
    found = pick(ran, key=lambda method: sort_key(method[name]), default=None)
    return (found[name], found["method"]) if found else (None, "")
