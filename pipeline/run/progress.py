"""The progress of running actions, read once for both the event stream and the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pipeline.plan.actions import Action
from pipeline.report.stream import EventStream
from pipeline.run.action_status import ActionStatus, read_progress
from pipeline.run.admission import Cost
from pipeline.run.executors import WorkerLostError
from pipeline.store.digest import Digest
from pipeline.store.workspace import Workspace

_SECONDS = 1.0  # minimum time between progress lines


class ProgressLog:
    """The statuses of submitted actions, and their progress lines in the event stream.

    These lines come between the one for a queued action and the one for its end. Without a stream,
    none are written.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.stream: EventStream | None = None
        self._workspace = workspace
        self._statuses: dict[Digest, ActionStatus] = {}
        self._written: dict[Digest, ActionStatus] = {}
        self._last_written = 0.0

    def find(self, action: Action) -> ActionStatus | None:
        """Return the last known progress of an action, or None if it isn't running."""
        return self._statuses.get(action.digest)

    def start(self, action: Action, expected: Cost, attempt: int) -> None:
        """Record that an action was handed to the executor, for the first time or again."""
        self._written.pop(action.digest, None)
        if self.stream is not None:
            self.stream.write(
                "action-started",
                action,
                attempt=attempt,
                expected_seconds=round(expected.seconds, 3),
                expected_bytes=expected.peak,
            )

    def look(self, under_way: Iterable[Action]) -> None:
        """Read the progress of actions. Cheap to call often: it rarely writes a line."""
        actions = list(under_way)
        for action in actions:
            if status := read_progress(action, self._workspace):
                self._statuses[action.digest] = status
        now = time.monotonic()
        if self.stream is not None and now - self._last_written >= _SECONDS:
            self._last_written = now
            self._write(self.stream, actions)

    def _write(self, stream: EventStream, under_way: Iterable[Action]) -> None:
        for action in under_way:
            status = self._statuses.get(action.digest)
            if status is not None and status != self._written.get(action.digest):
                self._written[action.digest] = status
                facts = {
                    "stage": status.stage,
                    "done": status.done,
                    "total": status.total,
                }
                stream.write("action-progress", action, **facts)

    def end(self, action: Action) -> None:
        """Record that an action is no longer running."""
        self._statuses.pop(action.digest, None)

    def lose(self, action: Action, lost: WorkerLostError) -> None:
        """Record that the worker of an action died."""
        if self.stream is not None:
            self.stream.write("action-lost", action, **vars(lost))
