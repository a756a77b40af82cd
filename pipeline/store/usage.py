"""Counts how often a store helped.

The counts are hits, misses and seconds by kind of action, and the bytes that were fetched from its
remote and pushed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.store.digest import canonical_json
from pipeline.store.files import read_record, write_atomically
from pipeline.store.forms import Count, Seconds, check_of
from pipeline.store.store import Store

_FILE = "usage.json"


@dataclass
class Usage:
    """The use of the caches for one kind of action.

    `hits` and `misses` count the lookups with and without a result. `saved` is the time in seconds
    that the hits took when they were computed; `spent` is the time that the misses took now.
    """

    hits: Count = 0
    misses: Count = 0
    saved: Seconds = 0.0
    spent: Seconds = 0.0

    def add(self, usage: Usage) -> None:
        for name, value in vars(usage).items():
            setattr(self, name, round(getattr(self, name) + value, 3))

    @property
    def rate(self) -> float | None:
        """The share of hits, or None without any requests."""
        questions = self.hits + self.misses
        return self.hits / questions if questions else None


# The bytes fetched from a remote, and the bytes pushed there.
Moved = tuple[int, int]
# Usage by kind of action, and the bytes fetched from the remote and pushed there.
USAGE_RECORD: Mapping[str, Any] = {
    "kinds": dict[str, Usage],
    "moved": tuple[Count, Count],
}
_is_usage = check_of(USAGE_RECORD)
# Checks the record of the caches' use in a run, and in all runs of its store.
is_caches = check_of({"run": USAGE_RECORD, "store": USAGE_RECORD})


def usage_record(usage: Mapping[str, Usage], moved: Moved) -> dict[str, Any]:
    """Return usage and moved bytes as JSON, in the form of `USAGE_RECORD`."""
    kinds = {kind: vars(use) for kind, use in usage.items()}
    return {"kinds": kinds, "moved": moved}


def read_usage(store: Store) -> dict[str, Usage]:
    """Read the usage over all runs of a store, by kind of action; {} if nothing is known."""
    return _read(store)[0]


def read_moved(store: Store) -> Moved:
    """Read the numbers of bytes that all runs of a store fetched and pushed."""
    return _read(store)[1]


def _read(store: Store) -> tuple[dict[str, Usage], Moved]:
    data = read_record(store.root / _FILE)
    if data is None or not _is_usage(data):
        return {}, (0, 0)
    usage = {kind: Usage(**counts) for kind, counts in data["kinds"].items()}
    fetched, pushed = data["moved"]
    return usage, (fetched, pushed)


def add_usage(store: Store, more: Mapping[str, Usage], moved: Moved = (0, 0)) -> None:
    """Add to the usage of a store. Does nothing if the store can't be written to."""
    with suppress(OSError), store.lock("usage"):
        total, (fetched, pushed) = _read(store)
        for kind, usage in more.items():
            total.setdefault(kind, Usage()).add(usage)
        data = canonical_json(
            usage_record(total, (fetched + moved[0], pushed + moved[1]))
        )
        write_atomically(store.root / _FILE, data, store.root)
