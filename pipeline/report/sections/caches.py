"""The use of the caches: what was found instead of computed, and what that saved."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.report.cells import figure, name
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import duration, percent
from pipeline.store.forms import fits
from pipeline.store.sizes import human_size
from pipeline.store.usage import CachesRecord, Usage, UsageRecord

_TABLES = {"run": "The last run", "store": "All runs with this store"}


def section(timeline: Json | None) -> ReportSection:
    """Return the section of what a `timeline.json` says of caches; empty where it says nothing."""
    caches = (timeline or {}).get("otherData", {}).get("caches")
    if not fits(caches, CachesRecord):
        return ReportSection("caches", "Found instead of computed")
    parts = [
        part
        for key, title in _TABLES.items()
        for part in (_sum(title, caches[key]), DataTable(key, title, list(_rows(caches[key]))))
    ]
    return ReportSection("caches", "Found instead of computed", *parts)


def _sum(title: str, record: UsageRecord) -> str:
    saved = sum(each["saved"] for each in record["kinds"].values())
    spent = sum(each["spent"] for each in record["kinds"].values())
    fetched, pushed = map(human_size, record["moved"])
    moved = f"; {fetched} fetched from the remote, {pushed} pushed" if any(record["moved"]) else ""
    return f"{title}: {duration(saved)} of work saved, {duration(spent)} done{moved}."


def _rows(record: UsageRecord) -> Iterator[Row]:
    for kind, counts in sorted(record["kinds"].items()):
        use = Usage(**counts)
        yield {
            "action": name(kind),
            "found": figure(use.hits),
            "computed": figure(use.misses),
            "hit rate": figure(use.rate, lambda rate: percent(rate, 0)),
            "saved": figure(use.saved, duration),
            "spent": figure(use.spent, duration),
        }
