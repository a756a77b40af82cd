"""Settles, counts and reports the outcomes of doit's tasks: one half of the runner."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from doit.exceptions import TaskFailed
from doit.runner import FAILURE, Runner

from pipeline.cli.doit_link import action_task
from pipeline.cli.run_record import RunRecord
from pipeline.moments import show_error
from pipeline.plan.actions import Action
from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event, make_event
from pipeline.store.usage import Usage
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace


class TaskOutcomes(Runner):  # type: ignore[misc]
    """A runner that records the outcome of each task."""

    def __init__(self, *arguments: Any, jobs: int) -> None:
        """Take the arguments of doit's Runner, and the number of processes of `doit -n`."""
        super().__init__(*arguments)
        self.record = RunRecord(jobs)
        self.final_result: int
        self._lease = contextlib.ExitStack()
        self._is_held = False
        self._noted: set[ActionTask] = set()

    def _settle(
        self, node: Any, task: ActionTask, status: Status, action: Action
    ) -> bool:
        """Settle a task that needs no worker; return False for any other."""
        from pipeline.run.stored import install_stored  # a no-op run settles no task

        if status.state == "stale":
            return False
        if status.state != "hit":
            self._succeed(node, make_event(task, "up-to-date", reason=status.reason))
            return True
        workspace = task.plan.workspace
        try:
            if task.traits.installed:
                self._hold(workspace)
                if not install_stored(workspace, action):
                    return False
        except OSError as error:
            self._fail(node, describe_failure(task, error, status.reason))
            return True
        self._count_hit(workspace, action)
        self._succeed(
            node,
            make_event(task, "hit", reason=status.reason, start=time.time()),
        )
        return True

    def _hold(self, workspace: Workspace) -> None:
        """Keep other processes from evicting the results that this run uses from now on."""
        # Imported here, since a no-op run takes no lease.
        from pipeline.store.leases import lease

        if not self._is_held:
            self._is_held = True
            self._lease.enter_context(lease(workspace.store))

    def _count_hit(self, workspace: Workspace, action: Action) -> None:
        entry = workspace.store.get(action.digest)
        self.record.count(
            action.kind,
            Usage(hits=1, saved=entry.seconds if entry else 0.0),
        )

    def _note(self, task: ActionTask | None, event: Event) -> None:
        """Record the outcome of a task, unless it was only checked again."""
        assert task is not None
        if event.outcome == "up-to-date" and task in self._noted:
            return
        self._noted.add(task)
        self.record.add(task.plan.workspace, event)

    def _succeed(self, node: Any, event: Event) -> None:
        self._note(action_task(node.task), event)
        node.run_status = "successful"
        self.reporter.add_success(node.task)

    def _fail(self, node: Any, event: Event, shown: str | None = None) -> None:
        """Settle a failed task.

        Args:
            shown: the part of the error to print if not all of it; "" if it was already printed.
        """
        self._note(action_task(node.task), event)
        node.run_status = "failure"
        text = show_error(event.error if shown is None else shown, event.kind)
        message = ""
        if text:
            stage = f" in stage '{event.stage}'" if event.stage and event.log else ""
            host = f" on {one_line(event.host)}" if event.host else ""
            log = f"\n  log: {one_line(event.log)}" if event.log else ""
            message = f"{node.task.name} failed{stage}{host}: {text}{log}"
        self.reporter.add_failure(node.task, TaskFailed(message))
        self._failed()

    def _not_run(self, node: Any, reason: str) -> None:
        """Settle a task of ours, or a group of tasks, that can't or shouldn't run."""
        task = action_task(node.task)
        node.run_status = "failure"
        if task is not None:
            self._note(task, make_event(task, "not-run", reason=reason))

    def _failed(self) -> None:
        self.final_result = max(self.final_result, FAILURE)
        if not self.continue_:
            self._stop_running = True


def describe_failure(task: ActionTask, error: Exception, reason: str = "") -> Event:
    """Return the event of a task that failed before it reached a worker."""
    text = str(error)
    if isinstance(error, OSError) and error.filename:
        text = one_line(f"{error.filename}: {error.strerror}")
    return make_event(task, "failed", reason=reason, error=text)
