"""Tells the event stream of a run what becomes of the actions that an executor was given."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pipeline.plan.actions import Action
from pipeline.report.stream import EventStream
from pipeline.run.action_status import progress_path, read_status
from pipeline.run.executors import WorkerLostError
from pipeline.store.costs import Cost
from pipeline.store.digest import Digest
from pipeline.store.workspace import Workspace

_SECONDS = 1.0  # between two looks at how far actions are


class Progress:
    """The lines between that which says that an action is queued and that which says how it ended.
    Without a stream nothing is told."""

    def __init__(self, workspace: Workspace) -> None:
        self.stream: EventStream | None = None
        self._workspace = workspace
        self._told: dict[Digest, tuple[str, int, int]] = {}
        self._looked = 0.0

    def start(self, action: Action, expected: Cost, attempt: int) -> None:
        """Tell that an action was handed to the executor, for the first time or again."""
        if self.stream is not None:
            self._told.pop(action.digest, None)
            self.stream.write(
                "action-started",
                action,
                attempt=attempt,
                expected_seconds=round(expected.seconds, 3),
                expected_bytes=expected.peak,
            )

    def look(self, under_way: Iterable[Action]) -> None:
        """Tell which actions are further than at the last look; called often, it looks rarely."""
        if self.stream is None or time.monotonic() - self._looked < _SECONDS:
            return
        self._looked = time.monotonic()
        for action in under_way:
            if status := read_status(progress_path(action, self._workspace)):
                now = status["stage"], status["done"], status["total"]
                if self._told.get(action.digest) != now:
                    self._told[action.digest] = now
                    stage, steps_done, total = now
                    facts = {"stage": stage, "done": steps_done, "total": total}
                    self.stream.write("action-progress", action, **facts)

    def lose(self, action: Action, lost: WorkerLostError) -> None:
        """Tell that the worker of an action died."""
        if self.stream is not None:
            self.stream.write("action-lost", action, **vars(lost))
