"""Packages as reports over all of them show them: the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Json = Mapping[str, Any]


class Entry(NamedTuple):
    """`report` is the record of a package as it is now; None where there is none. Then `error` says
    why it could not be built, or is empty where it only was not validated yet."""

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


def ordered(entries: Iterable[Entry]) -> list[Entry]:
    """What failed first, then what was not validated, then by name."""
    return sorted(entries, key=lambda e: (not e.failed, e.report is not None, e.package))


def verdict(entries: Iterable[Entry]) -> str:
    """One line over all of them."""
    entries = list(entries)
    counts = {
        outcome: sum(entry.outcome == outcome for entry in entries)
        for outcome in ("failed", "not built", "not validated", "passed")
    }
    told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    noun = "package" if len(entries) == 1 else "packages"
    return f"{len(entries)} {noun}: {told}" if entries else "no packages"
