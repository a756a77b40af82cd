"""Worker processes on this machine.

Each is a separate joblib pool with one worker, so that its death affects no other. A process starts
when a call needs it and is kept until `close`. joblib's `Parallel` has one pool for all calls: one
death ends them all, and results wait while its input iterator blocks.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pipeline.run.action_status import read_status
from pipeline.run.executors import ExecutorLostError, WorkerLostError
from pipeline.run.executors.system import (
    available_memory,
    count_oom_kills,
    own_memory,
    peak_memory,
)
from pipeline.run.worker_group import WorkerGroup, join, starting_workers
from pipeline.store.files import remove
from pipeline.store.scratch import empty_folder, scratch_folder
from pipeline.store.toolchain import HASH_SEED, hash_seed, unchanged_folders
from pte_pipeline.import_path import (
    SAFE_PATH,
    begin_worker,
    is_untrusted,
    starting_safely,
)
from pte_pipeline.joblib_processes import (
    BrokenProcessPool,
    ProcessPoolExecutor,
    ShutdownExecutorError,
)

# By default native libraries start one thread per core, and the number of threads changes results.
_THREADS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
# Short, since the paths of sockets contain it: macOS allows 104 characters.
_SCRATCH = "pte-run-"
# For example `SIGSEGV(-11)`; joblib reports signals only in error messages.
_SIGNALS = re.compile(r"[A-Z]+\(-?\d+\)")


@dataclass
class _WorkerCall:
    """A running call, with its progress file and the most memory it was seen to hold, in bytes."""

    status: Path
    process: ProcessPoolExecutor
    oom_kills: int
    peak_bytes: int = 0

    def describe_end(self, error: BaseException) -> WorkerLostError:
        """Describe how the call's process died."""
        signals = ", ".join(sorted(set(_SIGNALS.findall(str(error)))))
        stage = str(read_status(self.status).get("stage", ""))
        with suppress(OSError):
            remove(self.status)
        system = ""
        if count_oom_kills() > self.oom_kills:
            system = "the system ended it for lack of memory"
        elif "KILL" in signals:
            system = "the system may have ended it for lack of memory"
        return WorkerLostError(signals, stage, self.peak_bytes, system)


def _explain_start(error: OSError) -> ExecutorLostError:
    """Explain why no worker can be started, for example because of the limit on open files."""
    remedy = ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "; raise `ulimit -n`, 256 is enough"
    elif error.errno == errno.EAGAIN:
        remedy = "; raise `ulimit -u`, or end other processes"
    return ExecutorLostError(f"no worker can be started: {error.strerror}{remedy}")


class WorkerProcesses:
    """Processes that call functions. All methods are thread-safe."""

    def __init__(self) -> None:
        self._group: WorkerGroup | None = None
        self._processes: list[ProcessPoolExecutor] = []
        self._idle: list[ProcessPoolExecutor] = []
        self._under_way: dict[Future[Any], _WorkerCall] = {}
        self._lock = threading.RLock()
        self._folders = ExitStack()
        self._scratch, self._numbers = Path(), count()

    def __len__(self) -> int:
        return len(self._processes)

    def submit(
        self, status: Path, function: Callable[..., Any], *arguments: Any
    ) -> Future[Any]:
        """Call a function in the process that became idle last, or in a new one.

        Args:
            status: the progress file that the function writes, as `run.worker.run` does.

        Returns:
            A future of the function's result; it raises WorkerLostError if the process dies, and
            ExecutorLostError if none can be started.
        """
        outer: Future[Any] = Future()
        outer.set_running_or_notify_cancel()
        with self._lock, starting_workers():
            try:
                inner, process = self._hand_out(function, *arguments)
            except OSError as error:
                outer.set_exception(_explain_start(error))
                return outer
            self._under_way[outer] = _WorkerCall(status, process, count_oom_kills())
        inner.add_done_callback(partial(self._settle, outer))
        return outer

    def _hand_out(self, *call: Any) -> tuple[Future[Any], ProcessPoolExecutor]:
        while self._idle:
            process = self._idle.pop()
            try:
                return process.submit(*call), process
            except BrokenProcessPool:  # it died while idle
                self._processes.remove(process)
        process = self._start()
        return process.submit(*call), process

    def _settle(self, outer: Future[Any], inner: Future[Any]) -> None:
        """Pass the outcome of a call on, and mark its process as idle or gone."""
        error = inner.exception()
        with self._lock:
            call = self._under_way.pop(outer)
            is_gone = isinstance(error, BrokenProcessPool | ShutdownExecutorError)
            (self._processes.remove if is_gone else self._idle.append)(call.process)
            if is_gone:
                empty_folder(Path(call.process._env["TMPDIR"]))
        if error is None:
            outer.set_result(inner.result())
        else:
            outer.set_exception(call.describe_end(error) if is_gone else error)

    def start_ahead(
        self, idle: int, function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Start processes that call a function, until a number of them is idle.

        Errors are ignored: a later call that finds no process will report them.
        """
        with suppress(OSError), self._lock, starting_workers():
            while len(self._idle) < idle:
                process = self._start()
                process.submit(function, *arguments)
                self._idle.append(process)

    def _start(self) -> ProcessPoolExecutor:
        if self._group is None:
            self._group = WorkerGroup()
            self._scratch = self._folders.enter_context(scratch_folder(_SCRATCH))
            os.environ[HASH_SEED] = hash_seed()  # the same for all workers
        environment = dict.fromkeys(_THREADS, "1")
        environment["TMPDIR"] = str(self._make_scratch())
        if is_untrusted():
            environment[SAFE_PATH] = "1"
        initial = SAFE_PATH in os.environ, unchanged_folders()
        try:
            with starting_safely():
                process: Any = ProcessPoolExecutor(
                    max_workers=1,
                    initializer=begin_worker,
                    initargs=initial,
                    env=environment,
                )
                process.submit(
                    join, self._group.number, os.getpid(), environment["TMPDIR"]
                )
        # loky fails while it cleans up a process that didn't start.
        except UnboundLocalError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        self._processes.append(process)
        return process

    def _make_scratch(self) -> Path:
        """Make a folder for the temporary files of a worker."""
        folder = self._scratch / str(next(self._numbers))
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def free_memory(self) -> float:
        """Return the bytes that are free or held by these processes."""
        with self._lock:
            numbers = [
                number for process in self._processes for number in process._processes
            ]
        return available_memory() + sum(map(own_memory, numbers))

    def look(self) -> None:
        """Record the memory of running calls, since a process that is killed can't report it."""
        with self._lock:
            under_way = list(self._under_way.values())
        for call in under_way:
            if type(process := read_status(call.status).get("pid")) is int:
                call.peak_bytes = max(call.peak_bytes, peak_memory(process))

    def peak_bytes(self, future: Future[Any]) -> int:
        """Return the most bytes that a running call was seen to hold."""
        call = self._under_way.get(future)
        return call.peak_bytes if call else 0

    def cancel(self, future: Future[Any]) -> None:
        """Kill the process of a running call; the call's future raises WorkerLostError."""
        if call := self._under_way.get(future):
            call.process.shutdown(wait=False, kill_workers=True)

    def close(self) -> None:
        """Kill these processes, whatever they are doing, and all processes that they started."""
        if self._group is not None:
            self._group.close()
            for process in list(self._processes):
                process.shutdown(wait=True, kill_workers=True)
        self._folders.close()
