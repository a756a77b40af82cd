"""The part that runs in dask's worker: it passes a parcel to a separate process, and watches it.

An action that crashes its process therefore leaves dask's worker alive, and an action that is no
longer needed ends at once. dask's worker itself imports no torch and performs no part of the
action.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from distributed import Status, WorkerPlugin, get_worker

from pipeline.features.cluster.forms import MEMORY, RESOURCE, TOPIC, Json
from pipeline.features.cluster.tags import offered_tags
from pipeline.features.cluster.unpack import perform_parcel
from pipeline.plan.actions import Action
from pipeline.plan.requests import read_names
from pipeline.run.action_status import log_path, progress_path, read_status
from pipeline.run.executors import WorkerLostError
from pipeline.run.executors.processes import WorkerProcesses
from pipeline.run.executors.system import available_memory
from pipeline.store.settings import usable_cores
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

_LOOK = 0.2  # seconds between two polls of a process
_BETWEEN_REPORTS = 1.0  # seconds between two reports of the same stage
_BETWEEN_LOGS = 2.0  # seconds between two reads of its log
_MOST_LOG = 1 << 16  # bytes of a log that are sent while its action runs
_MANY = 1_000_000  # of a tag, which actions never use up


class Resources(WorkerPlugin):
    """Declares each worker's memory for actions, and the backends whose requirements it meets."""

    name = TOPIC

    async def setup(self, worker: Any) -> None:
        if MEMORY not in worker.state.total_resources:  # once: it resets what is in use
            resources = {f"{RESOURCE}{tag}": _MANY for tag in offered_tags()}
            resources[MEMORY] = _memory_of(worker)
            await worker.set_resources(**resources)
            worker.log_event(TOPIC, {"joined": worker.address})


def _memory_of(worker: Any) -> int:
    """Return the bytes that a worker may use.

    This is the limit configured in dask, or a share of this machine's memory in proportion to the
    worker's threads.
    """
    if limit := worker.memory_manager.memory_limit:
        return int(limit)
    share = min(1.0, worker.state.nthreads / usable_cores())
    return int(share * min(available_memory(), 1 << 50))


def _host() -> str:
    return os.uname().nodename


@cache
def _processes() -> WorkerProcesses:
    _allow_children()
    # dask's nanny sets it for dask's worker. With it, actions would keep returning memory to the
    # system only to request it again.
    os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    return WorkerProcesses()


@cache
def _cleaner() -> ThreadPoolExecutor:
    """Return the thread that deletes the folders of finished actions."""
    return ThreadPoolExecutor(1, "pte-cleaner")


def _allow_children() -> None:
    """Let this process have children.

    dask's nanny starts it as a daemon, and multiprocessing refuses children of daemons. They still
    end with it (`WorkerGroup`). This function can go once `distributed.worker.daemon` is false by
    default.
    """
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def perform(parcel: str) -> str:
    """Perform the action of a parcel, and return its answer, both as JSON."""
    worker = get_worker()
    folder = tempfile.TemporaryDirectory(prefix="action-", dir=worker.local_directory)
    try:
        return json.dumps(_Performance(worker, parcel, Path(folder.name)).run())
    finally:
        # In the background: deleting takes longer than anything else between two actions.
        _cleaner().submit(folder.cleanup)


class _Performance:
    """The run of one parcel, in a temporary workspace folder."""

    def __init__(self, worker: Any, parcel: str, folder: Path) -> None:
        self._action: Action[None] = read_names(json.loads(parcel)["request"])
        self._workspace = Workspace(folder, Store(folder), jobs=1)
        self._worker, self._key = worker, worker.get_current_task()
        self._parcel, self._folder = parcel, str(folder)
        self._status = progress_path(self._action, self._workspace)
        self._sent: Any = {}
        self._sent_at = 0.0
        self._read, self._read_at = 0, 0.0  # bytes of the log, and when

    def run(self) -> Json:
        future = _processes().submit(
            self._status, perform_parcel, self._parcel, self._folder
        )
        answer: dict[str, Any]
        try:
            self._watch(future)
            answer = json.loads(future.result())
        except WorkerLostError as lost:
            crash_log = CrashLog(self._workspace.logs, str(self._action.package))
            facts = {
                name: value for name, value in vars(lost).items() if name != "host"
            }
            answer = {"lost": {**facts, "step": _read_step(crash_log)}}
        answer |= {"log": "", "worker": self._worker.address, "host": _host()}
        with suppress(OSError):
            answer["log"] = log_path(self._action, self._workspace).read_text(
                errors="replace"
            )
        return answer

    def _watch(self, future: Future[str]) -> None:
        """Report progress until the process is done, or end it once nobody waits for it."""
        while not wait([future], timeout=_LOOK).done:
            _processes().look()
            self._say(future)
            if not self._is_wanted():
                _processes().cancel(future)

    def _say(self, future: Future[str]) -> None:
        status = read_status(self._status)
        is_recent = time.monotonic() - self._sent_at < _BETWEEN_REPORTS
        if is_recent and status.get("stage", "") == self._sent.get("stage"):
            return
        report = {
            "parcel": str(self._key),
            "worker": self._worker.address,
            "host": _host(),
            "log": self._read_log(),
            "stage": status.get("stage", ""),
            "done": status.get("done", 0),
            "total": status.get("total", 0),
            "peak_bytes": _processes().peak_bytes(future),
        }
        if report != self._sent:
            self._sent, self._sent_at = {**report, "log": ""}, time.monotonic()
            self._worker.log_event(TOPIC, report)

    def _read_log(self) -> str:
        """Return the output since the last report.

        It is returned at most every few seconds and up to a limit, since the scheduler keeps every
        message. The answer has the whole log.
        """
        if time.monotonic() - self._read_at < _BETWEEN_LOGS:
            return ""
        self._read_at = time.monotonic()
        with (
            suppress(OSError),
            open(log_path(self._action, self._workspace), "rb") as log,
        ):
            log.seek(self._read)
            piece = log.read(max(0, _MOST_LOG - self._read))
            self._read += len(piece)
            return piece.decode(errors="replace")
        return ""

    def _is_wanted(self) -> bool:
        task = self._worker.state.tasks.get(self._key)
        running = self._worker.status in (Status.running, Status.paused)
        return running and task is not None and task.state == "executing"


def _read_step(log: CrashLog) -> str:
    """Return the last recorded step, as text for another machine's log, or ""."""
    try:
        return log.step_file.read_text()
    except (OSError, ValueError):
        return ""
