"""The section on caches: what was reused instead of computed, and the time saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.report.cells import figure, name
from pipeline.report.elements import DataTable, Json, ReportSection, Row
from pipeline.report.formatting import duration, percent
from pipeline.store.sizes import human_size
from pipeline.store.usage import Usage, is_caches

_TABLES = {"run": "The last run", "store": "All runs with this store"}


def section(timeline: Json | None) -> ReportSection:
    """Return the section on the caches in a `timeline.json`, empty if it doesn't mention them."""
    caches = (timeline or {}).get("otherData", {}).get("caches")
    if not is_caches(caches):
        return ReportSection("caches", "Reused instead of rebuilt")
    parts: list[str | DataTable] = []
    for key, title in _TABLES.items():
        record = caches[key]
        usage = {}
        for kind, counts in record["kinds"].items():
            usage[kind] = Usage(**counts)
        parts.append(f"{title}: {_sum(usage, record['moved'])}.")
        parts.append(DataTable(key, title, list(_rows(usage))))
    return ReportSection("caches", "Reused instead of rebuilt", *parts)


def _sum(usage: Mapping[str, Usage], moved: Sequence[int]) -> str:
    saved = sum(use.saved for use in usage.values())
    spent = sum(use.spent for use in usage.values())
    work = f"{duration(saved)} of work saved, {duration(spent)} done"
    if not any(moved):
        return work
    fetched, pushed = map(human_size, moved)
    return f"{work}; {fetched} fetched from the remote, {pushed} pushed"


def _rows(usage: Mapping[str, Usage]) -> Iterator[Row]:
    for kind, use in sorted(usage.items()):
        yield {
            "action": name(kind),
            "found": figure(use.hits),
            "computed": figure(use.misses),
            "hit rate": figure(use.rate, lambda rate: percent(rate, 0)),
            "saved": figure(use.saved, duration),
            "spent": figure(use.spent, duration),
        }
