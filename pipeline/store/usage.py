"""Counts of how often a store helped: hits, misses and seconds, by kind of action."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict

from pipeline.store.digest import canonical_json
from pipeline.store.files import read_record, write_atomically
from pipeline.store.forms import Count, fits
from pipeline.store.store import Store

# What the keys of each kind of action are made from.
LEVELS = {
    **dict.fromkeys(("programs", "reads", "export"), "1 source"),
    **dict.fromkeys(("quantize", "compile", "link", "validate"), "2 program"),
    "preprocess": "3 partition",
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


class _Counts(TypedDict):
    hits: Count
    misses: Count
    saved: float
    spent: float


def read_usage(store: Store) -> dict[str, Usage]:
    """Read the usage over all runs of a store, by kind of action; empty if nothing is known."""
    data = read_record(store.root / "usage.json")
    if not fits(data, dict[str, _Counts]):
        return {}
    return {kind: Usage(**counts) for kind, counts in (data or {}).items()}


def add_usage(store: Store, more: Mapping[str, Usage]) -> None:
    """Add to the usage of a store. A store that cannot be written counts nothing."""
    with suppress(OSError), store.lock("usage"):
        total = read_usage(store)
        for kind, usage in more.items():
            total.setdefault(kind, Usage()).add(usage)
        data = {kind: vars(usage) for kind, usage in total.items()}
        write_atomically(store.root / "usage.json", canonical_json(data), store.root)
