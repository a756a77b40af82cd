"""The tasks of a build: actions identified by name.

The plan provides the action of a task when it is the task's turn, because the key can depend on
what runs before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pipeline.plan import status
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.plan.kinds.kind import Kind

# The methods that are compiled together, the method that is quantized, or the methods that are
# validated if not all are; otherwise empty.
Unit = Sequence[str]


def _find_quantize(plan: Plan, package: str, unit: Unit) -> Action | None:
    return (plan.quantizes(package) or {}).get(unit_name(unit))


def _find_compile(plan: Plan, package: str, unit: Unit) -> Action | None:
    name = unit_name(unit)
    for action in plan.compiles(package) or ():
        if action.method == name:
            return action
    return None


_ACTIONS: Mapping[str, Callable[[Plan, str, Unit], Action | None]] = {
    "export": lambda plan, model, unit: plan.models.export(model),
    "quantize": _find_quantize,
    "compile": _find_compile,
    "link": lambda plan, package, unit: plan.link(package),
    "validate": Plan.validate,
}


def find_action(plan: Plan, kind: str, name: str, unit: Unit = ()) -> Action | None:
    """Return an action of a package (for an export, of a model), or None until it can be known."""
    return _ACTIONS[kind](plan, name, unit)


def find_status(plan: Plan, kind: str, name: str, unit: Unit = ()) -> Status:
    """Return the status of an action. Raises SourceError if a model can't be read."""
    match kind:
        case "export":
            return status.export_status(plan, name)
        case "link":
            return status.link_status(plan, name)
        case "validate":
            return status.validate_status(plan, name, unit)
    return status.unit_status(plan, name, find_action(plan, kind, name, unit))


class ActionTask(NamedTuple):
    """An action, identified by its kind and names."""

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
        """The name of its package or, for an export, of its model, which packages may share."""
        return str(self.package or self.model)

    @property
    def title(self) -> str:
        return "/".join(filter(None, [self.name, unit_name(self.unit)]))

    @property
    def traits(self) -> Kind:
        from pipeline.plan.kinds.table import KINDS  # a no-op run does without any kind

        return KINDS[self.kind]

    def action(self, always: bool = False) -> Action | None:
        """Return the action with its inputs as they are now, or None if one is missing.

        Args:
            always: return the action of this unit. Otherwise, the validation of the whole package
                replaces the validation of some methods unless it is stale.
        """
        unit: Unit = self.unit
        with _while_files_last(self.plan):
            if self.kind == "validate" and not always:
                unit = status.validated_unit(self.plan, self.name, unit)
            return find_action(self.plan, self.kind, self.name, unit)

    def status(self) -> Status:
        """Return the status of the action.

        Raises:
            PipelineError: the package has mistakes, or no longer has a config, or its model can't
                be read.
        """
        if self.package is not None and not self.plan.configs.has(self.package):
            raise PipelineError(f"{self.package} no longer has a config")
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
    """Raise PipelineError, with the name of the file, if a file is removed during a run."""
    try:
        yield
    except FileNotFoundError as error:
        path = os.path.relpath(error.filename or "", plan.workspace.root)
        raise PipelineError(f"{path}: was removed during the run") from error
