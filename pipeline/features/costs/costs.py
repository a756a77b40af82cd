"""Records the cost of actions by name: seconds and peak bytes of the latest run of each.

A store's entries have both, too, but can only be found by key. These records give the cost of an
action under another key, before its model or config changed. They are part of no key, and may be
deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from pipeline.run.admission import Cost
from pipeline.store.digest import canonical_json
from pipeline.store.files import read_record, write_atomically
from pipeline.store.forms import Count, check_of
from pipeline.store.store import Store

_MOST = 100_000  # names to keep; those not run for longest are dropped
_is_record = check_of({"costs": [[str, str, str, str, float, Count]]})


class Name(NamedTuple):
    """An action, whatever its key."""

    kind: str
    model: str
    package: str
    method: str


def read_costs(store: Store) -> dict[Name, Cost]:
    """Return the recorded costs of a store's actions, the latest last; empty if there are none."""
    data = read_record(store.root / "costs.json")
    if data is None or not _is_record(data):
        return {}
    return {Name(*row[:4]): Cost(*row[4:]) for row in data["costs"]}


def add_costs(store: Store, more: Mapping[Name, Cost]) -> None:
    """Record the costs of actions, unless the store can't be written."""
    if not more:
        return
    with suppress(OSError), store.lock("costs"):
        recorded = read_costs(store)
        costs = {
            name: cost for name, cost in recorded.items() if name not in more
        } | dict(more)
        rows = [
            [*name, round(cost.seconds, 3), cost.peak] for name, cost in costs.items()
        ]
        data = canonical_json({"costs": rows[-_MOST:]})
        write_atomically(store.root / "costs.json", data, store.root)
