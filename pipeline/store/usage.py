"""Counts of how often a store helped: hits, misses and seconds, by kind of action."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pipeline.store.digest import canonical_json
from pipeline.store.files import read_record, write_atomically
from pipeline.store.store import Store

# The level of the key of each kind of action: the raw bytes of a source, a program, a partition.
LEVELS = {
    "programs": 1,
    "reads": 1,
    "export": 1,
    "quantize": 2,
    "compile": 2,
    "link": 2,
    "validate": 2,
    "preprocess": 3,
}


@dataclass
class Usage:
    """Counts for one kind of action. `saved` are the seconds that the hits took when they were
    computed, `spent` those that the misses took."""

    hits: int = 0
    misses: int = 0
    saved: float = 0.0
    spent: float = 0.0

    def add(self, other: Usage) -> None:
        for name, value in vars(other).items():
            setattr(self, name, round(getattr(self, name) + value, 3))


def read_usage(store: Store) -> dict[str, Usage]:
    """Read the usage over all runs of a store, by kind of action; empty if nothing is known."""
    try:
        data = read_record(store.root / "usage.json") or {}
        return {kind: Usage(**counts) for kind, counts in data.items()}
    except TypeError:
        return {}


def add_usage(store: Store, more: Mapping[str, Usage]) -> None:
    """Add to the usage of a store. A store that cannot be written counts nothing."""
    with suppress(OSError), store.lock("usage"):
        total = read_usage(store)
        for kind, usage in more.items():
            total.setdefault(kind, Usage()).add(usage)
        data = {kind: vars(usage) for kind, usage in total.items()}
        write_atomically(store.root / "usage.json", canonical_json(data))
