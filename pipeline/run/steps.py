"""What the doit tasks of ours stand for, and how doit asks whether they are up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.plan import status
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.store.errors import PipelineError


@dataclass(frozen=True)
class Step:
    """What a doit task of ours stands for. Its action is asked of the plan when the task's turn
    comes, since an action's key can depend on what ran before it."""

    plan: Plan
    kind: str
    model: str | None = None
    package: str | None = None
    unit: tuple[str, ...] = ()

    def action(self) -> Action | None:
        if self.kind == "export":
            return self.plan.models.export(str(self.model))
        package = str(self.package)
        if self.kind == "link":
            return self.plan.link(package)
        if self.kind == "validate":
            return self.plan.validate(package)
        if self.kind == "quantize":
            return (self.plan.quantizes(package) or {}).get(unit_name(self.unit))
        compiles = self.plan.compiles(package) or []
        return next((a for a in compiles if a.method == unit_name(self.unit)), None)

    def status(self) -> Status:
        """Raises PipelineError for a package with mistakes, or a model that can't be read."""
        if self.kind == "export":
            return status.export_status(self.plan, str(self.model))
        package = str(self.package)
        self.plan.check(package)
        if self.kind == "link":
            return status.link_status(self.plan, package)
        if self.kind == "validate":
            return status.validate_status(self.plan, package)
        if self.kind == "quantize":
            return status.quantize_status(self.plan, package, self.action())
        return status.compile_status(self.plan, package, self.action())


class UpToDate:
    """doit's `uptodate` callable; `doit info` shows `str` of it, which is our reason."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._reason = ""

    def __call__(self) -> bool:
        try:
            status = self.step.status()
        except PipelineError as error:
            self._reason = str(error)
            return False
        self._reason = status.reason
        return status.current

    def __str__(self) -> str:
        return self._reason


def step_of(task: Any) -> Step | None:
    """What a doit task stands for; None for a task that is not ours."""
    checks = (check for check, _, _ in task.uptodate)
    return next((check.step for check in checks if isinstance(check, UpToDate)), None)
