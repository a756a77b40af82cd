"""The kinds of actions: one table of what differs between them, and the tasks of a build.

A task stands for an action that the plan gives when its turn comes, as the key can depend on what
runs before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pipeline.plan import status
from pipeline.plan.actions import Action, KindName, unit_name
from pipeline.plan.keys import exported_blobs
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.store.digest import Digest
from pipeline.store.pieces import blobs_of_files

Unit = Sequence[str]
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of action.

    Functions take the plan, the package (for an export, the model) and the unit: the methods that
    are compiled together, the one that is quantized, or those that are validated if not all are;
    otherwise empty.

    Attributes:
        action: returns the action, or None while it can't be known.
        status: returns the action's status. Raises SourceError for a model that can't be read.
        blobs: yields the blobs of the store that a result needs to be of use.
        installed: whether its result is files, which are put into the package's folder.
        subsumes: whether a result in the store makes the actions before it superfluous.
        serving: returns the unit whose action serves for a unit: a wider one, where what that takes
            is there.
    """

    name: KindName
    action: Callable[[Plan, str, Unit], Action | None]
    status: Callable[[Plan, str, Unit], Status]
    blobs: Callable[[Result], Iterable[Digest]]
    installed: bool = False
    subsumes: bool = False
    serving: Callable[[Plan, str, Unit], Unit] = lambda plan, package, unit: unit

    def last(self, state: Mapping[str, Any], unit: Unit) -> Digest | None:
        """Return the digest of the action that was last done, by the recorded state of its
        package."""
        recorded = state.get(self.name, {})
        digest: Digest | None = recorded.get("action" if self.installed else unit_name(unit))
        return digest


def _find_quantize(plan: Plan, package: str, unit: Unit) -> Action | None:
    return (plan.quantizes(package) or {}).get(unit_name(unit))


def _find_compile(plan: Plan, package: str, unit: Unit) -> Action | None:
    name = unit_name(unit)
    return next((a for a in plan.compiles(package) or () if a.method == name), None)


def _unit_status(find: Callable[[Plan, str, Unit], Action | None]) -> Any:
    return lambda plan, package, unit: status.unit_status(plan, package, find(plan, package, unit))


_ROWS = (
    Kind(
        "export",
        lambda plan, model, _: plan.models.export(model),
        lambda plan, model, _: status.export_status(plan, model),
        exported_blobs,
    ),
    Kind("quantize", _find_quantize, _unit_status(_find_quantize), itemgetter("blobs")),
    Kind("compile", _find_compile, _unit_status(_find_compile), itemgetter("blobs"), subsumes=True),
    Kind(
        "link",
        lambda plan, package, _: plan.link(package),
        lambda plan, package, _: status.link_status(plan, package),
        blobs_of_files,
        installed=True,
        subsumes=True,
    ),
    Kind(
        "validate",
        lambda plan, package, unit: plan.validate(package, unit),
        lambda plan, package, unit: status.validate_status(plan, package, unit),
        blobs_of_files,
        installed=True,
        serving=lambda plan, package, unit: status.validated_unit(plan, package, unit),
    ),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ROWS}  # in the order of a run


@dataclass(frozen=True)
class ActionTask:
    """An action by its names."""

    plan: Plan
    kind: str
    model: str | None = None
    package: str | None = None
    unit: tuple[str, ...] = ()

    @property
    def method(self) -> str | None:
        return unit_name(self.unit) or None

    @property
    def traits(self) -> Kind:
        return KINDS[self.kind]

    def action(self, always: bool = False) -> Action | None:
        """Return the action as its inputs are now; None where one is missing. `always` performs it
        whatever there is."""
        name = str(self.package or self.model)
        unit = self.unit if always else self.traits.serving(self.plan, name, self.unit)
        return self.traits.action(self.plan, name, unit)

    def status(self) -> Status:
        """Return whether the action's result is there.

        Raises:
            PipelineError: the package has mistakes, or its model can't be read.
        """
        if self.package is not None:
            self.plan.check(self.package)
        return self.traits.status(self.plan, str(self.package or self.model), self.unit)
