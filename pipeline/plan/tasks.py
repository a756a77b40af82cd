"""The tasks of a build: actions by their names.

A task stands for an action that the plan gives when its turn comes, as the key can depend on what
runs before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pipeline.plan import status
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.kinds.table import KINDS, Kind
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.store.errors import PipelineError

# The methods that are compiled together, the one that is quantized, or those that are validated if
# not all are; otherwise empty.
Unit = Sequence[str]


def _find_export(plan: Plan, model: str, unit: Unit) -> Action | None:
    return plan.models.export(model)


def _find_quantize(plan: Plan, package: str, unit: Unit) -> Action | None:
    return (plan.quantizes(package) or {}).get(unit_name(unit))


def _find_compile(plan: Plan, package: str, unit: Unit) -> Action | None:
    name = unit_name(unit)
    for action in plan.compiles(package) or ():
        if action.method == name:
            return action
    return None


def _find_link(plan: Plan, package: str, unit: Unit) -> Action | None:
    return plan.link(package)


def _find_validate(plan: Plan, package: str, unit: Unit) -> Action | None:
    return plan.validate(package, unit)


_ACTIONS: Mapping[str, Callable[[Plan, str, Unit], Action | None]] = {
    "export": _find_export,
    "quantize": _find_quantize,
    "compile": _find_compile,
    "link": _find_link,
    "validate": _find_validate,
}


def find_action(plan: Plan, kind: str, name: str, unit: Unit = ()) -> Action | None:
    """Return an action of a package (for an export, of a model); None while it can't be known."""
    return _ACTIONS[kind](plan, name, unit)


def find_status(plan: Plan, kind: str, name: str, unit: Unit = ()) -> Status:
    """Return the status of an action. Raises SourceError for a model that can't be read."""
    match kind:
        case "export":
            return status.export_status(plan, name)
        case "link":
            return status.link_status(plan, name)
        case "validate":
            return status.validate_status(plan, name, unit)
    return status.unit_status(plan, name, find_action(plan, kind, name, unit))


class ActionTask(NamedTuple):
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
    def name(self) -> str:
        """Its package, or that of the model for an export, which several packages share."""
        return str(self.package or self.model)

    @property
    def title(self) -> str:
        return "/".join(filter(None, [self.name, unit_name(self.unit)]))

    @property
    def traits(self) -> Kind:
        return KINDS[self.kind]

    def action(self, always: bool = False) -> Action | None:
        """Return the action as its inputs are now; None where one is missing.

        `always` performs it whatever there is. Otherwise that of a wider unit serves, where what it
        takes is there.
        """
        unit: Unit = self.unit
        with _while_files_last(self.plan):
            if self.kind == "validate" and not always:
                unit = status.validated_unit(self.plan, self.name, unit)
            return find_action(self.plan, self.kind, self.name, unit)

    def status(self) -> Status:
        """Return whether the action's result is there.

        Raises:
            PipelineError: the package has mistakes, or no config any more, or its model can't be
                read.
        """
        if self.package is not None and not self.plan.configs.has(self.package):
            raise PipelineError(f"no config makes {self.package} anymore")
        with _while_files_last(self.plan):
            if self.package is not None:
                self.plan.check(self.package)
            return find_status(
                self.plan,
                self.kind,
                self.name,
                self.unit,
            )


@contextmanager
def _while_files_last(plan: Plan) -> Iterator[None]:
    """Raises PipelineError, with its name, for a file that is removed while a run goes on."""
    try:
        yield
    except FileNotFoundError as error:
        path = os.path.relpath(error.filename or "", plan.workspace.root)
        raise PipelineError(f"{path}: was removed during the run") from error
