"""The link to doit: which action a task stands for, and whether it is up to date."""

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
    """doit's `uptodate` callable; `doit info` shows its `reason`. `setup` makes the tasks that come
    before this one where it is stale, if they were not made with it."""

    __signature__ = Signature()  # which doit asks for at each call

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
        """Return whether the task is up to date, by which doit's next question is answered too. One
        with mistakes is not: they are shown when its turn comes."""
        try:
            return (self._status or self.status()).current
        except PipelineError:
            return False

    def status(self) -> Status:
        """Return the task's status, by which doit's next question is answered too. Raises
        PipelineError."""
        self._status = self.task.status()
        return self._status


def up_to_date(task: Any) -> UpToDate | None:
    """Return the check of a doit task of ours; None for any other."""
    for check, _, _ in task.uptodate:
        if isinstance(check, UpToDate):
            return check
    return None


def action_task(task: Any) -> ActionTask | None:
    """Return what a doit task stands for; None for a task that is not ours."""
    check = up_to_date(task)
    if check:
        return check.task
    return None


def is_foreign(task: Any) -> bool:
    """Return whether a task is no action and no group of tasks, but the user's own."""
    return bool(task.actions) and action_task(task) is None
