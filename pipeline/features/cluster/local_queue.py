"""Actions of a cluster build that run on the driver's machine."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from functools import partial

from pipeline.plan.actions import Action
from pipeline.run.executors.local import LocalExecutor
from pipeline.run.performed import Report
from pipeline.store.workspace import Workspace


class LocalQueue:
    """A queue in front of this machine's executor, which takes `jobs` actions at a time.

    All methods are thread-safe.
    """

    def __init__(self, workspace: Workspace, jobs: int, always: bool) -> None:
        self._executor = LocalExecutor(workspace, jobs, always)
        self._waiting: deque[tuple[Action, int, Future[Report]]] = deque()
        self._busy = 0
        self._lock = threading.Lock()
        self.look = self._executor.look
        self.close = self._executor.close

    def run(self, action: Action, memory: int, promise: Future[Report]) -> None:
        """Queue an action; its report is set on `promise`."""
        with self._lock:
            self._waiting.append((action, memory, promise))
        self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._waiting or self._busy >= self._executor.slots:
                return
            self._busy += 1
            action, memory, promise = self._waiting.popleft()
        inner = self._executor.submit(action, memory)
        inner.add_done_callback(partial(self._settle, promise))

    def _settle(self, promise: Future[Report], inner: Future[Report]) -> None:
        with self._lock:
            self._busy -= 1
        self._start()
        if error := inner.exception():
            promise.set_exception(error)
        else:
            promise.set_result(inner.result())
