"""Remembers what actions took, by their names: seconds and peak bytes of the latest run of each.

Entries of a store have both, and are found by key alone; this says what an action took under
another key, before its model or config changed. It is no part of any key, and may be deleted.
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

_MOST = 100_000  # names that are kept; those that were not run for longest go
_is_record = check_of({"costs": [[str, str, str, str, float, Count]]})


class Name(NamedTuple):
    """An action, whatever its key is."""

    kind: str
    model: str
    package: str
    method: str


def read_costs(store: Store) -> dict[Name, Cost]:
    """Read what the actions of a store took, the latest last; empty if nothing is known."""
    data = read_record(store.root / "costs.json")
    if data is None or not _is_record(data):
        return {}
    return {Name(*row[:4]): Cost(*row[4:]) for row in data["costs"]}


def add_costs(store: Store, more: Mapping[Name, Cost]) -> None:
    """Remember what actions took. A store that cannot be written remembers nothing."""
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
