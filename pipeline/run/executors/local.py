"""The local executor: actions run in up to `slots` worker processes on this machine."""

from __future__ import annotations

import atexit
from concurrent.futures import Future

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.requests import write_request
from pipeline.run.action_status import progress_path
from pipeline.run.executors.processes import WorkerProcesses
from pipeline.run.performed import Report
from pipeline.run.worker import import_ahead, run
from pipeline.store.workspace import Workspace

_ahead: list[WorkerProcesses] = []  # not yet taken by an executor


def start_ahead(workspace: Workspace, workers: int) -> None:
    """Start workers for the next executor, up to a number; they import what actions need."""
    if not _ahead:
        _ahead.append(WorkerProcesses())
        atexit.register(_close_ahead)
    _ahead[0].start_ahead(workers, import_ahead, workspace)


def _close_ahead() -> None:
    while _ahead:
        _ahead.pop().close()


class LocalExecutor:
    """Runs actions in worker processes on this workspace, so requests need no extra files."""

    def __init__(self, workspace: Workspace, slots: int, always: bool) -> None:
        self.slots = self.width = slots
        self._workspace = workspace
        self._always = always
        self._processes = _ahead.pop() if _ahead else WorkerProcesses()
        self.look = self._processes.look
        self.free_memory = self._processes.free_memory
        self.close = self._processes.close

    def submit(self, action: Action, memory: int) -> Future[Report]:
        """Hand an action to a worker.

        During an export, another worker starts and imports its libraries: the exported programs are
        compiled next, by more workers. That isn't done if only weights have probably changed.
        """
        status = progress_path(action, self._workspace)
        request = write_request(action, self._workspace.root)
        future = self._processes.submit(
            status, run, request, self._workspace, self._always
        )
        if (
            action.kind == "export"
            and len(self._processes) < self.slots
            and not any(call_all("expects_refit", action, self._workspace))
        ):
            self._processes.start_ahead(1, import_ahead, self._workspace)
        return future
