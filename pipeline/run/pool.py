"""The one joblib run: actions that are ready go to worker processes, reports come back.

One `Parallel`, from one thread. A worker that dies takes no other action with it: what was under
way is tried again alone, so that the report names the action that kills its worker.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from pipeline.plan.actions import Action
from pipeline.report.events import make_event
from pipeline.run.worker import Report, log_name, log_path, run
from pipeline.run.worker_group import WorkerGroup, join, starting_workers
from pipeline.store.files import make_folder, remove
from pipeline.store.toolchain import HASH_SEED, hash_seed
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog


class Pool:
    """Worker processes, started by the first `run` and kept until `close`."""

    def __init__(self, workspace: Workspace, jobs: int, always: bool) -> None:
        self._workspace = replace(workspace)  # without what it has cached
        self._jobs = jobs
        self._always = always
        self._group: WorkerGroup | None = None

    def run(self, ready: Sequence[Action]) -> Iterator[tuple[Action, Report]]:
        """Yield the reports of all actions, in the order in which they end."""
        waiting = list(ready)
        for action in waiting:
            with suppress(OSError):  # its worker says what is wrong
                make_folder(log_path(action, self._workspace).parent, self._workspace.build)
                remove(log_path(action, self._workspace))
            CrashLog(self._workspace.logs, str(action.package)).clear()  # only a validation writes
        while waiting:
            done: set[int] = set()
            try:
                for index, report in self._parallel(waiting, self._jobs):
                    done.add(index)
                    yield waiting[index], report
                return
            except TerminatedWorkerError:
                left = [action for index, action in enumerate(waiting) if index not in done]
                # The log of an action is the first thing that its worker makes.
                begun = [a for a in left if log_path(a, self._workspace).exists()]
                yield from self._alone(begun or left)
                waiting = [action for action in left if action not in begun] if begun else []

    def _alone(self, suspects: Iterable[Action]) -> Iterator[tuple[Action, Report]]:
        """Run actions one by one.

        A validation that ends its worker is tried again, without the method that did it, as long as
        that is another one each time.
        """
        for action in suspects:
            crash_log = CrashLog(self._workspace.logs, str(action.package))
            crash_log.clear(crashes=False)  # it may have died with another one
            again = True
            while again:
                again = False
                try:
                    yield from ((action, report) for _, report in self._parallel([action], 1))
                except TerminatedWorkerError as error:
                    # As `SIGSEGV(-11)`; only the message of the error has it.
                    how = ", ".join(sorted(set(re.findall(r"[A-Z]+\(-?\d+\)", str(error)))))
                    again = crash_log.record_crash(how)
                    if not again:
                        what = f"its worker process died{how and f' ({how})'}, twice"
                        what += "; the system may have ended it for lack of memory"
                        log = log_name(action, self._workspace)
                        facts = {"error": what, "stage": "worker", "log": log}
                        yield action, Report(make_event(action, "failed", **facts))

    def _parallel(self, waiting: Sequence[Action], jobs: int) -> Iterator[tuple[int, Report]]:
        # With n_jobs=1 joblib would run the actions in this process, which must not import torch;
        # what is under way is bounded by pre_dispatch.
        warnings.filterwarnings("ignore", "A worker stopped", module="joblib")  # it is replaced
        with starting_workers():
            if self._group is None:
                self._group = WorkerGroup()
                os.environ[HASH_SEED] = hash_seed()  # for all workers that joblib starts
            parallel = Parallel(
                n_jobs=max(2, self._jobs),
                backend="loky",
                return_as="generator_unordered",
                pre_dispatch=jobs,
                batch_size=1,
                temp_folder=self._workspace.build,  # or joblib makes one in /dev/shm, for arrays
                initializer=join,
                initargs=(self._group.number, os.getpid()),
            )
            reports = parallel(
                delayed(_numbered)(index, action, self._workspace, self._always)
                for index, action in enumerate(waiting)
            )
        yield from reports

    def close(self) -> None:
        """End the workers now, whatever they do, and all that they started."""
        if self._group is not None:
            self._group.close()
            get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _numbered(index: int, action: Action, workspace: Workspace, always: bool) -> tuple[int, Report]:
    return index, run(action, workspace, always)
