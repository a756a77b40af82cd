"""Links doit's tasks to actions: which action a task stands for, and whether it is up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Signature
from typing import Any

from doit.task import Task

from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask
from pipeline.store.errors import PipelineError

MakeTasks = Callable[[], Iterator[Task]]


class UpToDate:
    """doit's `uptodate` callable; `doit info` shows its `reason`.

    If the task is stale, `setup` makes the tasks that must come first, unless they were made with
    it.
    """

    __signature__ = Signature()  # doit asks for it at each call

    def __init__(self, task: ActionTask, setup: MakeTasks | None = None) -> None:
        self.task = task
        self.setup = setup
        self.reason = ""
        self._status: Status | None = None

    def __call__(self) -> bool:
        try:
            status = self._status or self.status()
        except PipelineError as error:
            self.reason = str(error)
            return False
        self._status = None
        self.reason = status.reason
        return status.current

    def is_current(self) -> bool:
        """Return whether the task is up to date, and keep the status for doit's next call.

        A task with config mistakes is not; they are reported when its turn comes.
        """
        try:
            return (self._status or self.status()).current
        except PipelineError:
            return False

    def status(self) -> Status:
        """Return the task's status, and keep it for doit's next call. Raises PipelineError."""
        self._status = self.task.status()
        return self._status


def up_to_date(task: Any) -> UpToDate | None:
    """Return the `UpToDate` check of a doit task, or None if the task is not ours."""
    for check, _, _ in task.uptodate:
        if isinstance(check, UpToDate):
            return check
    return None


def action_task(task: Any) -> ActionTask | None:
    """Return the action task that a doit task stands for, or None if the task is not ours."""
    check = up_to_date(task)
    if check:
        return check.task
    return None


def is_foreign(task: Any) -> bool:
    """Return whether a task is the user's own, neither an action nor a group of tasks."""
    return bool(task.actions) and action_task(task) is None
