"""Predicts the cost of each action from earlier runs of it or of the most similar actions."""

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

_COPIES = 3  # of the weights, for an action without a record
_ORDER = (
    "export",
    "quantize",
    "compile",
    "link",
    "validate",
)  # the kinds in a build
_SPEED = 50 << 20  # bytes per second, only to order actions without a record


class Expectations:
    """Expectations from the costs recorded in a store, which are read on first use."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def expect(self, action: Action) -> Cost:
        """Return the cost of an action's earlier run, or a guess from its weights.

        The peak is at least the bytes of the weights.
        """
        sources = action.inputs.sources.values()
        cost = self._find(action)
        # Opening an archive takes milliseconds. Few have as many bytes as a process has memory.
        if cost and _weigh_archives(sources) <= cost.peak:
            return cost
        weights = weigh(sources)
        if cost:
            # The model may have grown since, or the exporter may have other parameters.
            return cost._replace(peak=max(cost.peak, weights))
        memory = LEAST_MEMORY + _COPIES * weights
        return Cost(memory / _SPEED, memory)

    def recall(self, action: Action | ActionTask) -> float | None:
        """Return the seconds that an action took before, or None without a record."""
        cost = self._find(action)
        return cost.seconds if cost else None

    def ahead(self, action: Action) -> float:
        """Return the seconds of the longest path that starts when an action ends.

        The path has one action of each later kind in turn, of the same package, or of any package
        of the model if the action belongs to none.
        """
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
        """Return the cost of an action under any key, or the maximum over similar actions.

        These are actions of its kind, model and method, or else those of its kind and model.
        """
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
    """Return a name, then the wider names without its package, and without its method."""
    return (name, name._replace(package=""), name._replace(package="", method=""))


def remember(store: Store, events: Iterable[Event]) -> None:
    """Record the costs of the actions that were performed."""
    built = [event for event in events if event.outcome == "built" and event.worker]
    add_costs(store, {name_of(e): Cost(e.seconds, e.peak_bytes) for e in built})


def remember_run(
    workspace: Workspace, events: Iterable[Event], caches: Mapping[str, Any]
) -> None:
    """Record the costs of a run's actions in its workspace's store."""
    remember(workspace.store, events)


def _weigh_archives(sources: Iterable[MethodSource]) -> int:
    """Return the bytes of the archives of methods, of which weights are a part.

    Archives that can't be read don't count.
    """
    size = 0
    for archive in {source.archive for source in sources}:
        with suppress(OSError):
            size += archive.stat().st_size
    return size


def weigh(sources: Iterable[MethodSource]) -> int:
    """Return the bytes of the stored weights and constants of methods.

    Data that methods share counts once, and data that can't be read doesn't count.
    """
    sizes = {}
    for source in sources:
        with suppress(SourceError), open_archive(source.archive) as reader:
            for kind in KINDS:
                for record in reader.payloads(kind, source.entry).values():
                    member = f"data/{kind}/{record['path_name']}"
                    sizes[source.archive, member] = reader.members.size(member)
    return sum(sizes.values())
