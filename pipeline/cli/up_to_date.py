"""The link between a doit task and its action: whether it is up to date, and which it is."""

from __future__ import annotations

from typing import Any

from pipeline.run.action_task import ActionTask
from pipeline.store.errors import PipelineError


class UpToDate:
    """doit's `uptodate` callable; `doit info` shows `str` of it, which is our reason."""

    def __init__(self, task: ActionTask) -> None:
        self.task = task
        self._reason = ""

    def __call__(self) -> bool:
        try:
            status = self.task.status()
        except PipelineError as error:
            self._reason = str(error)
            return False
        self._reason = status.reason
        return status.current

    def __str__(self) -> str:
        return self._reason


def action_task(task: Any) -> ActionTask | None:
    """Return what a doit task stands for; None for a task that is not ours."""
    checks = (check for check, _, _ in task.uptodate)
    return next((check.task for check in checks if isinstance(check, UpToDate)), None)
