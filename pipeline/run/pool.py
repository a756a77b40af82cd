"""The worker processes: actions that are ready go to them, reports come back.

Each worker is a pool of one process of joblib's loky, so that one that dies takes no other action
with it: its own is tried again, alone, once the others have ended.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any

from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor

from pipeline.plan.actions import Action
from pipeline.report.events import make_event
from pipeline.run.worker import Report, import_ahead, log_name, log_path, run
from pipeline.run.worker_group import WorkerGroup, join, starting_workers
from pipeline.store.files import make_folder, remove
from pipeline.store.toolchain import HASH_SEED, hash_seed
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

# Libraries of native code start a thread a core otherwise, whose number changes what they compute.
_THREADS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
)


class Pool:
    """Up to `jobs` worker processes, each started when there is an action for it, and kept until
    `close`."""

    def __init__(self, workspace: Workspace, jobs: int, always: bool) -> None:
        self._workspace = replace(workspace)  # without what it has cached
        self._jobs = jobs
        self._always = always
        self._group: WorkerGroup | None = None
        self._workers: list[ProcessPoolExecutor] = []
        self._idle: list[ProcessPoolExecutor] = []

    def run(self, ready: Sequence[Action]) -> Iterator[tuple[Action, Report]]:
        """Yield the reports of all actions, in the order in which they end."""
        for action in ready:
            with suppress(OSError):  # its worker says what is wrong
                make_folder(log_path(action, self._workspace).parent, self._workspace.build)
                remove(log_path(action, self._workspace))
            CrashLog(self._workspace.logs, str(action.package)).clear()  # only a validation writes
        suspects = []
        for action, told in self._run(ready, self._jobs):
            if isinstance(told, Report):
                yield action, told
            else:
                suspects.append(action)
        for action in suspects:
            yield action, self._run_again(action)

    def _run_again(self, action: Action) -> Report:
        """Run an action whose worker died, alone.

        A validation that ends its worker is tried again, without the method that did it, as long as
        that is another one each time.
        """
        crash_log = CrashLog(self._workspace.logs, str(action.package))
        crash_log.clear(crashes=False)  # it may have died of what ran beside it
        while True:
            [(_, told)] = self._run([action], 1)
            if isinstance(told, Report):
                return told
            # As `SIGSEGV(-11)`; only the message of the error has it.
            how = ", ".join(sorted(set(re.findall(r"[A-Z]+\(-?\d+\)", str(told)))))
            if not crash_log.record_crash(how):
                what = f"its worker process died{how and f' ({how})'}, twice"
                what += "; the system may have ended it for lack of memory"
                log = log_name(action, self._workspace)
                return Report(make_event(action, "failed", error=what, stage="worker", log=log))

    def _run(
        self, actions: Sequence[Action], jobs: int
    ) -> Iterator[tuple[Action, Report | BrokenProcessPool]]:
        """Yield each action with its report, or with how its worker died."""
        waiting = deque(actions)
        under_way: dict[Future[Report], tuple[Action, ProcessPoolExecutor]] = {}
        while waiting or under_way:
            while waiting and len(under_way) < jobs:
                action = waiting.popleft()
                future, worker = self._submit(action)
                under_way[future] = action, worker
            if any(action.kind == "export" for action, _ in under_way.values()):
                self._start_ahead()
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                action, worker = under_way.pop(future)
                try:
                    report = future.result()
                except BrokenProcessPool as error:
                    self._workers.remove(worker)
                    yield action, error
                else:
                    self._idle.append(worker)
                    yield action, report

    def _submit(self, action: Action) -> tuple[Future[Report], ProcessPoolExecutor]:
        """Hand an action to the worker that was busy last, or to a new one."""
        arguments = (run, action, self._workspace, self._always)
        with starting_workers():
            while self._idle:
                worker = self._idle.pop()
                try:
                    return worker.submit(*arguments), worker
                except BrokenProcessPool:  # it died while it had nothing to do
                    self._workers.remove(worker)
            worker = self._start()
            return worker.submit(*arguments), worker

    def _start_ahead(self) -> None:
        """Let another worker import what it needs: programs that are being exported are compiled
        next, by more workers than export them."""
        if not self._idle and len(self._workers) < self._jobs:
            with starting_workers():
                worker = self._start()
                worker.submit(import_ahead, self._workspace)
                self._idle.append(worker)

    def _start(self) -> ProcessPoolExecutor:
        if self._group is None:
            self._group = WorkerGroup()
            os.environ[HASH_SEED] = hash_seed()  # for all workers
        worker: Any = ProcessPoolExecutor(
            max_workers=1,
            initializer=join,
            initargs=(self._group.number, os.getpid()),
            env={name: os.environ.get(name, "1") for name in _THREADS},
        )
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """End the workers now, whatever they do, and all that they started."""
        if self._group is not None:
            self._group.close()
            for worker in self._workers:
                worker.shutdown(wait=True, kill_workers=True)
