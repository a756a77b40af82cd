"""Expects of actions that they take what they, or those most like them, took before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pipeline.features.costs.costs import Name, add_costs, read_costs
from pipeline.plan.actions import Action
from pipeline.plan.tasks import ActionTask
from pipeline.program.archive_reader import KINDS, open_archive
from pipeline.program.sources import MethodSource
from pipeline.report.events import Event
from pipeline.run.admission import LEAST_MEMORY, Cost
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_COPIES = 3  # of the weights of an action that nothing is known of
_ORDER = (
    "export",
    "quantize",
    "compile",
    "link",
    "validate",
)  # of the kinds in a build
_SPEED = 50 << 20  # bytes a second, which only orders actions that nothing is known of


class Expectations:
    """Expectations from what a store remembers, which is read when it is first asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def expect(self, action: Action) -> Cost:
        """Return what an action took before, and no less than its weights; or else a guess from
        these."""
        weights = weigh(action.inputs.sources.values())
        if cost := self._find(action):
            # The model may have grown since, or the exporter has other parameters.
            return cost._replace(peak=max(cost.peak, weights))
        memory = LEAST_MEMORY + _COPIES * weights
        return Cost(memory / _SPEED, memory)

    def recall(self, action: Action | ActionTask) -> float | None:
        """Return the seconds that an action took before, None where the store knows of none."""
        cost = self._find(action)
        return cost.seconds if cost else None

    def ahead(self, action: Action) -> float:
        """Return the seconds of the longest path that begins when an action ends, one action of
        each later kind after the other: those of its package, or of any package of its model."""
        seconds = 0.0
        for kind in _ORDER[_ORDER.index(action.kind) + 1 :]:
            place = kind, action.model, action.package
            seconds += self._longest.get(place, LEAST_MEMORY / _SPEED)
        return seconds

    @cached_property
    def _longest(self) -> dict[tuple[str, str | None, str | None], float]:
        """The seconds of the longest action by kind, model and package, or None for any package."""
        longest: dict[tuple[str, str | None, str | None], float] = {}
        for name, cost in read_costs(self._store).items():
            for package in (name.package, None):
                place = name.kind, name.model, package
                longest[place] = max(cost.seconds, longest.get(place, 0.0))
        return longest

    def _find(self, action: Action | ActionTask) -> Cost | None:
        """Return what an action took under another key; or else the most that actions of its model
        and kind took, those of its method if there are any."""
        costs = map(self._costs.get, _widen(name_of(action)))
        return next(filter(None, costs), None)

    @cached_property
    def _costs(self) -> dict[Name, Cost]:
        costs = read_costs(self._store)
        for name, cost in list(costs.items()):
            for wider in _widen(name):
                most = costs.get(wider, cost)
                costs[wider] = Cost._make(map(max, cost, most))
        return costs


def name_of(action: Action | ActionTask | Event) -> Name:
    model = str(action.model)
    return Name(action.kind, model, action.package or "-", action.method or "-")


def _widen(name: Name) -> tuple[Name, ...]:
    """Return a name, and those of a method in any package, and of a model."""
    return (name, name._replace(package=""), name._replace(package="", method=""))


def remember(store: Store, events: Iterable[Event]) -> None:
    """Remember what actions took that were performed."""
    built = [event for event in events if event.outcome == "built" and event.worker]
    add_costs(store, {name_of(e): Cost(e.seconds, e.peak_bytes) for e in built})


def remember_run(
    workspace: Workspace, events: Iterable[Event], caches: Mapping[str, Any]
) -> None:
    """Remember what the actions of a run took, in its workspace's store."""
    remember(workspace.store, events)


def weigh(sources: Iterable[MethodSource]) -> int:
    """Return the bytes of the weights and constants of methods, as they are stored; those that
    methods share count once, and those that can't be read count nothing."""
    sizes = {}
    for source in sources:
        with suppress(SourceError), open_archive(source.archive) as reader:
            for kind in KINDS:
                for record in reader.payloads(kind, source.entry).values():
                    member = f"data/{kind}/{record['path_name']}"
                    sizes[source.archive, member] = reader.members.size(member)
    return sum(sizes.values())
