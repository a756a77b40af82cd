"""Tasks of a build, each for an action that the plan gives when the task's turn comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.plan.actions import Action, unit_name
from pipeline.plan.kinds import KINDS, Kind
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.report.events import Event, Outcome


@dataclass(frozen=True)
class ActionTask:
    """An action by its names, as its key can depend on what runs before it."""

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

    @property
    def _place(self) -> tuple[Plan, str, tuple[str, ...]]:
        return self.plan, str(self.package or self.model), self.unit

    def action(self) -> Action | None:
        """Return the action as its inputs are now; None where one is missing."""
        return self.traits.action(*self._place)

    def status(self) -> Status:
        """Return whether the action's result is there.

        Raises:
            PipelineError: the package has mistakes, or its model can't be read.
        """
        if self.package is not None:
            self.plan.check(self.package)
        return self.traits.status(*self._place)


def find_again(plan: Plan, action: Action) -> Action | None:
    """Return an action as its inputs are now; None where one is missing."""
    unit = tuple(action.method.split("+")) if action.method else ()
    return KINDS[action.kind].action(plan, action.package or action.model, unit)


def make_event(of: Action | ActionTask, outcome: Outcome, **facts: Any) -> Event:
    """Return an event of an action, or of the task for one."""
    return Event(of.kind, of.package, of.method, of.model or "", outcome, **facts)
