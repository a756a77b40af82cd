"""The driver's side of a cluster: sends parcels to dask's workers, turns answers into reports."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from pipeline.features.cluster.agent import perform
from pipeline.features.cluster.answers import Answers
from pipeline.features.cluster.connection import Connection
from pipeline.features.cluster.forms import MEMORY, Json, is_progress
from pipeline.features.cluster.heartbeats import Heartbeats, read_timeout
from pipeline.features.cluster.local_queue import LocalQueue
from pipeline.features.cluster.pack import Packer
from pipeline.features.cluster.shipment import Shipment
from pipeline.features.cluster.tags import find_tags
from pipeline.plan.actions import Action
from pipeline.report.events import make_event
from pipeline.run.action_status import log_name
from pipeline.run.executors import ExecutorLostError, WorkerLostError
from pipeline.run.performed import Report
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.files import write_atomically
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

PATIENCE = 120.0  # seconds for which an action waits for a worker that can take it
_BETWEEN_LOOKS = 2.0  # seconds between two looks at the list of workers
_PACKING = 4  # parcels packed at a time if some wait for the remote
_log = logging.getLogger(__name__)


class ClusterExecutor:
    """Runs actions on the workers of a scheduler, except for exports, which need this machine.

    Args:
        where: `dask://host:port`, or `dask` for a cluster of `jobs` workers on this machine.

    Raises:
        ExecutorLostError: the scheduler can't be reached, or its workers lack this package.
    """

    def __init__(
        self, workspace: Workspace, jobs: int, always: bool, where: str
    ) -> None:
        self._workspace = workspace
        self._where = where
        self._packer = Packer(workspace, always)
        self._answers = Answers(workspace)
        self._threads = ThreadPoolExecutor(_PACKING, "pte-cluster")
        # Without a remote, one thread is as fast, and keeps the order.
        packing = 1 if workspace.store.remote is None else _PACKING
        self._packing = ThreadPoolExecutor(packing, "pte-packing")
        self._local_queue = LocalQueue(workspace, jobs, always)
        self._queue: deque[Shipment] = deque()  # not packed yet
        self._room = 2 * jobs if where == "dask" else math.inf  # for more of them
        self._shipments: dict[str, Shipment] = {}
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._lost = ""  # why everything in progress is given up
        self._warned = False  # about a cluster without workers
        self._looked = 0.0
        self.width = 0
        self._most_memory = 0.0
        self._heartbeats = Heartbeats(read_timeout(workspace.root))
        self._connection = Connection(where, jobs)
        self._client = self._connection.client
        self._connection.listen(self._hear, self._hear_of_workers)
        self._look_for_workers()

    @property
    def slots(self) -> int:
        """Twice as many as run at a time, plus some for clusters that grow with their queue.

        This way, no worker waits for the driver.
        """
        return 2 * self.width + 8

    # Sending

    def submit(self, action: Action, memory: int) -> Future[Report]:
        shipment = Shipment(action, find_tags(action), memory)
        shipment.promise.set_running_or_notify_cancel()
        if action.kind == "export":
            self._local_queue.run(action, memory, shipment.promise)
        else:
            with self._lock:
                self._queue.append(shipment)
            shipment.promise.add_done_callback(self._make_room)
            self._fill_room()
        return shipment.promise

    def _make_room(self, promise: Future[Report]) -> None:
        with self._lock:
            self._room += 1
        self._fill_room()

    def _fill_room(self) -> None:
        """Pack and send the shipments that the cluster has room for, the earliest first.

        dask assigns an action to a worker when it receives it. So the cluster that is started here
        receives at most two for each worker; the others go to the worker that is free first.
        """
        with self._lock:
            while self._queue and self._room > 0:
                self._room -= 1
                shipment = self._queue.popleft()
                self._packing.submit(self._guarded, shipment, self._pack_and_send)

    def _pack_and_send(self, shipment: Shipment) -> None:
        shipment.parcel = self._packer.pack(shipment.action)
        self._send(shipment)

    def _send(self, shipment: Shipment) -> None:
        """Submit a shipment to the scheduler, for any worker that hasn't refused it."""
        action = shipment.action
        key = f"{action.kind}-{action.digest[:16]}-{self._client.id}-{next(self._numbers)}"
        is_picky = bool(shipment.refused or self._heartbeats.find_silent())
        workers = self._find_willing(shipment) if is_picky else None
        resources: dict[str, float] = dict.fromkeys(shipment.resources, 1)
        if (
            self._most_memory
        ):  # an action that is expected to take more has a worker to itself
            resources[MEMORY] = min(shipment.memory, self._most_memory)
        with self._lock:
            if self._lost:
                raise ExecutorLostError(self._lost)
            shipment.progress = None
            shipment.since = time.monotonic()
            self._shipments[key] = shipment
            shipment.future = self._client.submit(
                perform,
                shipment.parcel,
                key=key,
                pure=False,
                workers=workers,
                resources=resources,
                # By default, actions submitted within 100 ms would run in any order.
                fifo_timeout="0 ms",
            )
        shipment.future.add_done_callback(partial(self._settle, key))

    def _find_willing(self, shipment: Shipment) -> list[str]:
        """Return the workers that answer and have not refused a shipment."""
        unwilling = {*shipment.refused, *self._heartbeats.find_silent()}
        return [w for w in self._connection.workers() if w not in unwilling]

    def _guarded(self, shipment: Shipment, step: Any, *arguments: Any) -> None:
        """Take a step with a shipment; any error becomes the shipment's outcome."""
        try:
            step(shipment, *arguments)
        except (ExecutorLostError, WorkerLostError) as error:
            shipment.promise.set_exception(error)
        except (PipelineError, OSError) as error:
            self._fail(shipment, describe_error(error))
        except BaseException as error:  # a bug, which must not leave the run waiting
            shipment.promise.set_exception(error)

    # Receiving

    def _settle(self, key: str, future: Any) -> None:
        with self._lock:
            shipment = self._shipments.pop(key, None)
        if shipment is not None:
            self._guarded(shipment, self._take_answer, future)

    def _take_answer(self, shipment: Shipment, future: Any) -> None:
        if future.status == "finished":
            self._receive(shipment, future.result())
        elif not self._connection.runs:
            raise ExecutorLostError(f"the scheduler {self._where} was lost")
        elif future.cancelled() or type(future.exception()).__name__ == "KilledWorker":
            raise WorkerLostError(system="the cluster lost its worker")
        else:
            self._fail(
                shipment, f"its worker failed: {describe_error(future.exception())}"
            )

    def _receive(self, shipment: Shipment, text: object) -> None:
        """Handle the answer to a shipment's parcel."""
        action = shipment.action
        answer = self._answers.read(action, text)
        if "done" in answer:
            shipment.promise.set_result(
                self._answers.report(action, answer["done"], answer)
            )
        elif "refused" in answer:
            self._refuse(shipment, answer)
        elif "lost" in answer:
            lost = answer["lost"]
            log = CrashLog(self._workspace.logs, str(action.package))
            write_atomically(log.step_file, lost["step"].encode())
            raise WorkerLostError(
                signals=lost["signals"],
                stage=lost["stage"],
                peak_bytes=lost["peak_bytes"],
                system=lost["system"],
                host=one_line(answer["host"]),
            )
        else:
            raise PipelineError(
                f"worker {one_line(answer['worker'])}: {answer['missing']}"
            )

    def _fail(self, shipment: Shipment, error: str) -> None:
        event = make_event(
            shipment.action,
            "failed",
            error=error,
            stage="dispatch",
            log=log_name(shipment.action, self._workspace),
        )
        shipment.promise.set_result(Report(event))

    def _refuse(self, shipment: Shipment, answer: Json) -> None:
        """Try another worker, or run the action here if all workers refused it.

        It runs here only if the last worker refused it solely because of facts about its machine.
        """
        worker = one_line(answer["worker"])
        refused = answer["refused"]
        if worker in shipment.refused or worker not in self._connection.workers():
            # A worker that left meanwhile, or another under its name, which could refuse for ever.
            raise WorkerLostError(system=f"the cluster has no such worker: {worker}")
        shipment.refused[worker] = refused["differences"]
        if self._find_willing(shipment):
            self._send(shipment)
            return
        differences = one_line("; ".join(refused["differences"]))
        why = f"worker {worker} is another: {differences}"
        if refused["here"]:
            _log.warning("%s runs on this machine: %s", shipment.action.title, why)
            self._local_queue.run(shipment.action, shipment.memory, shipment.promise)
        else:
            raise PipelineError(f"no worker of {self._where} can run it: {why}")

    # Monitoring

    def _hear(self, event: Any) -> None:
        """Handle a worker's event: the progress of an action, or that the worker has joined."""
        _, message = event
        if is_progress(message):
            with (
                self._lock,
                suppress(OSError),
            ):  # lock, so that nothing is added to the answer's log
                shipment = self._shipments.get(message["parcel"])
                if shipment is not None:
                    shipment.progress = message
                    self._answers.note(shipment.action, message)
        elif isinstance(message, dict) and "joined" in message:
            self._threads.submit(self._send_again)

    def _send_again(self) -> None:
        """Submit the shipments that wait for a tag again.

        dask checks a worker's resources when it joins, and its tags are known a moment later.
        """
        for key, shipment in self._find_waiting().items():
            if shipment.tags and self._take_back(key) is not None:
                self._guarded(shipment, self._send)

    def _find_waiting(self) -> dict[str, Shipment]:
        """Return the shipments that no worker has started yet."""
        waiting = {}
        with self._lock:
            for key, shipment in self._shipments.items():
                if shipment.progress is None:
                    waiting[key] = shipment
        return waiting

    def _take_back(self, key: str) -> Shipment | None:
        """Cancel and return a shipment, or return None if it was already settled."""
        with self._lock:
            shipment = self._shipments.pop(key, None)
        if shipment is not None:
            with suppress(OSError, TimeoutError):
                shipment.future.cancel()
        return shipment

    def _hear_of_workers(self, event: Any) -> None:
        _, message = event
        if not isinstance(message, dict) or message.get("action") != "remove-worker":
            return
        if not message.get("expected"):
            self._threads.submit(self._lose_worker, str(message.get("worker")))

    def _lose_worker(self, worker: str) -> None:
        """Report the actions that ran on a lost worker as lost.

        dask would run them again, even if they are what crashes workers. dask may reassign actions
        that only waited there, and actions of a worker that was asked to leave.
        """
        with self._lock:
            shipments = dict(self._shipments)
        for key, shipment in shipments.items():
            progress = shipment.progress
            if (
                progress is not None
                and progress["worker"] == worker
                and self._take_back(key)
            ):
                shipment.lose(
                    progress, f"the cluster lost the worker {one_line(worker)}"
                )

    def free_memory(self) -> float:
        """Return infinity: memory is a resource of the workers, which dask allocates."""
        return math.inf

    def look(self) -> None:
        self._local_queue.look()
        if not self._connection.runs:
            self._lose(f"the scheduler {self._where} was lost")
        elif time.monotonic() - self._looked > _BETWEEN_LOOKS:
            try:
                self._look_for_workers()
            except OSError:
                if self._heartbeats.is_overdue():
                    self._lose(f"the scheduler {self._where} stopped answering")
            self._looked = time.monotonic()

    def _lose(self, why: str) -> None:
        """Give up all actions in the cluster."""
        with self._lock:
            self._lost = why
            shipments = list(self._shipments.values())
            self._shipments.clear()
        for shipment in shipments:
            shipment.promise.set_exception(ExecutorLostError(why))

    def _look_for_workers(self) -> None:
        """Give up actions that no worker can take, once they have waited long enough."""
        workers = self._connection.workers()
        self._look_for_silence(workers)
        self.width = sum(worker["nthreads"] for worker in workers.values())
        memory = [worker["resources"].get(MEMORY, 0) for worker in workers.values()]
        self._most_memory = max(memory, default=0)
        waiting = self._find_waiting()
        if not workers and waiting and not self._warned:
            _log.warning(
                "%s has no worker yet; pending actions wait for one", self._where
            )
            self._warned = True
        submitted = [shipment.since for shipment in waiting.values()]
        if workers and submitted and time.monotonic() - min(submitted) > PATIENCE:
            resources = [worker["resources"].keys() for worker in workers.values()]
            for key, shipment in waiting.items():
                if not shipment.can_run(resources) and self._take_back(key) is not None:
                    self._fail(shipment, shipment.describe_lack(self._where))

    def _look_for_silence(self, workers: Mapping[str, Any]) -> None:
        """Report workers that stopped answering, and move their actions to other workers."""
        self._heartbeats.note(workers)
        for worker in self._heartbeats.find_news():
            _log.warning("%s", one_line(self._heartbeats.describe(worker)))
        for worker in self._heartbeats.find_silent():
            for key in self._connection.find_assigned(worker):
                self._threads.submit(self._move, key, worker)

    def _move(self, key: str, worker: str) -> None:
        """Move a shipment away from a worker that stopped answering."""
        shipment = self._take_back(key)
        if shipment is None:
            return
        shipment.refused[worker] = ["it stopped answering"]
        if self._find_willing(shipment):
            self._guarded(shipment, self._send)
        else:
            story = f"the cluster's worker {one_line(worker)} stopped answering"
            shipment.promise.set_exception(WorkerLostError(system=story))

    def close(self) -> None:
        with self._lock:
            self._queue.clear()
            self._shipments.clear()
        self._local_queue.close()
        for threads in (self._packing, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)
        self._connection.close()
