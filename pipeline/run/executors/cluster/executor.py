"""The driver's side of a cluster: parcels go to dask's workers, answers come back as reports."""

from __future__ import annotations

import itertools
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dask
from distributed import Client, LocalCluster

from pipeline.plan.actions import Action
from pipeline.report.events import make_event
from pipeline.run.executors import ExecutorLostError, Needs, WorkerLostError
from pipeline.run.executors.cluster.agent import Resources, perform
from pipeline.run.executors.cluster.forms import MEMORY, RESOURCE, TOPIC, Answer, Done, Said
from pipeline.run.executors.cluster.pack import Packer
from pipeline.run.executors.local import LocalExecutor
from pipeline.run.stored import find_wrong_result
from pipeline.run.worker import Report, log_name, log_path, progress_path, write_status
from pipeline.run.worker_group import starting_workers
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.files import write_atomically
from pipeline.store.forms import fits
from pipeline.store.reasons import reason
from pipeline.store.remote import Counts
from pipeline.store.store import MissingBlobError
from pipeline.store.usage import Usage
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace
from pipeline.validate.crashes import CrashLog

PATIENCE = 120.0  # seconds for which an action waits for a worker that can take it
_CONNECT = "10s"
_CLOSE = 5.0  # seconds
_BETWEEN_LOOKS = 2.0  # seconds between two looks at which workers there are
_FIRST_LANE = 1 << 32  # above all numbers of processes
# Ctrl-C in a terminal reaches them too; they are this process's matter.
_NO_INTERRUPTS = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
_SILENT = logging.CRITICAL + 1
_PACKING = 4  # parcels packed at a time: some wait for the remote
_log = logging.getLogger(__name__)


@dataclass
class _Shipment:
    """An action that was handed to the cluster.

    Attributes:
        promise: the future that its report goes to.
        parcel: the action as JSON, once it is packed.
        future: dask's.
        since: when it was submitted, on the clock of `time.monotonic`.
        said: what its worker said of it last; None before it has one.
        refused: the workers that did not take it, and why.
    """

    action: Action
    needs: Needs
    promise: Future[Report] = field(default_factory=Future)
    parcel: str = ""
    future: Any = None
    since: float = 0.0
    said: Said | None = None
    refused: dict[str, list[str]] = field(default_factory=dict)


class ClusterExecutor:
    """Actions run on the workers of a scheduler, but for exports, which need this machine.

    Args:
        where: `dask://host:port`, or `dask` for a cluster of `jobs` workers on this machine.

    Raises:
        ExecutorLostError: the scheduler can't be reached, or its workers lack this package.
    """

    def __init__(self, workspace: Workspace, jobs: int, always: bool, where: str) -> None:
        self._workspace = workspace
        self._where = where
        self._packer = Packer(workspace, always)
        self._threads = ThreadPoolExecutor(_PACKING, "pte-cluster")
        self._here = LocalExecutor(workspace, jobs, always)
        self._waiting_here: deque[_Shipment] = deque()
        self._shipments: dict[str, _Shipment] = {}
        self._numbers = itertools.count()
        self._lanes: dict[tuple[str, int], int] = {}
        self._lock = threading.RLock()
        self._lost, self._told = "", False
        self._looked = 0.0
        self._busy_here = 0
        self._cluster: LocalCluster | None = None
        self._width, self._most_memory = 0, 0.0
        self._client = self._connect(jobs)
        self._look_for_workers()

    @property
    def slots(self) -> int:
        """Twice as many as run at a time, so that no worker waits for the driver, and some more for
        clusters that grow with what waits."""
        return 2 * self._width + 8

    def _connect(self, jobs: int) -> Client:
        where: Any = f"{_protocol()}://{self._where.partition('://')[2]}"
        try:
            with starting_workers():
                if self._where == "dask":
                    where = self._cluster = LocalCluster(
                        n_workers=jobs,
                        threads_per_worker=1,
                        memory_limit=0,
                        dashboard_address="127.0.0.1:0",  # a port that nobody has
                        preload=[_NO_INTERRUPTS],
                        silence_logs=_SILENT,
                    )
                client = Client(where, timeout=_CONNECT, set_as_default=False)
            _silence()
            client.register_plugin(Resources(), name=TOPIC)
        except (OSError, TimeoutError) as error:
            what = f"no scheduler answers at {where}: {reason(error)}"
            raise ExecutorLostError(what) from None
        except ImportError as error:
            what = f"a worker of {self._where} can't import pte-pipeline: {reason(error)}"
            raise ExecutorLostError(what) from None
        client.subscribe_topic(TOPIC, self._hear)
        client.subscribe_topic("all", self._hear_of_workers)
        return client

    # What goes there

    def submit(self, action: Action, needs: Needs) -> Future[Report]:
        shipment = _Shipment(action, needs)
        shipment.promise.set_running_or_notify_cancel()
        if action.kind == "export":
            self._run_here(shipment)
        else:
            self._threads.submit(self._guarded, shipment, self._pack_and_send)
        return shipment.promise

    def _pack_and_send(self, shipment: _Shipment) -> None:
        shipment.parcel = self._packer.pack(shipment.action)
        self._send(shipment)

    def _send(self, shipment: _Shipment) -> None:
        """Submit a shipment to the scheduler, for any worker but those that refused it."""
        action = shipment.action
        key = f"{action.kind}-{action.digest[:16]}-{self._client.id}-{next(self._numbers)}"
        workers = None
        if shipment.refused:
            workers = [each for each in self._workers() if each not in shipment.refused]
        resources: dict[str, float] = {f"{RESOURCE}{tag}": 1 for tag in shipment.needs.tags}
        if self._most_memory:  # one that is expected to take more has a worker for itself
            resources[MEMORY] = min(shipment.needs.memory, self._most_memory)
        with self._lock:
            if self._lost:
                raise ExecutorLostError(self._lost)
            shipment.said, shipment.since = None, time.monotonic()
            self._shipments[key] = shipment
            shipment.future = self._client.submit(
                perform,
                shipment.parcel,
                key=key,
                pure=False,
                workers=workers,
                resources=resources,
            )
        shipment.future.add_done_callback(partial(self._settle, key))

    def _guarded(self, shipment: _Shipment, step: Any, *arguments: Any) -> None:
        """Take a step with a shipment; what goes wrong is its outcome."""
        try:
            step(shipment, *arguments)
        except (ExecutorLostError, WorkerLostError) as error:
            shipment.promise.set_exception(error)
        except (PipelineError, OSError) as error:
            self._fail(shipment, describe_error(error))
        except BaseException as error:  # a bug, which must not leave the run waiting
            shipment.promise.set_exception(error)

    def _run_here(self, shipment: _Shipment) -> None:
        """Run an action on this machine, after those that are there already."""
        with self._lock:
            if self._busy_here >= self._here.slots:
                self._waiting_here.append(shipment)
                return
            self._busy_here += 1
        self._here.submit(shipment.action, shipment.needs).add_done_callback(
            partial(self._settle_here, shipment)
        )

    def _settle_here(self, shipment: _Shipment, inner: Future[Report]) -> None:
        with self._lock:
            self._busy_here -= 1
            waiting = self._waiting_here.popleft() if self._waiting_here else None
        if waiting is not None:
            self._run_here(waiting)
        if error := inner.exception():
            shipment.promise.set_exception(error)
        else:
            shipment.promise.set_result(inner.result())

    # What comes back

    def _settle(self, key: str, future: Any) -> None:
        with self._lock:
            shipment = self._shipments.pop(key, None)
        if shipment is not None:
            self._guarded(shipment, self._take_answer, future)

    def _take_answer(self, shipment: _Shipment, future: Any) -> None:
        if future.status == "finished":
            self._receive(shipment, future.result())
        elif self._client.status != "running":
            raise ExecutorLostError(f"the scheduler {self._where} was lost")
        elif future.cancelled() or type(future.exception()).__name__ == "KilledWorker":
            raise WorkerLostError(system="the cluster lost its worker")
        else:
            self._fail(shipment, f"its worker failed: {describe_error(future.exception())}")

    def _receive(self, shipment: _Shipment, text: str) -> None:
        """Take an answer, which is believed no more than what a remote sends."""
        answer: Answer = json.loads(text)
        if not fits(answer, Answer):
            raise PipelineError("its worker gave an answer of another form")
        action, workspace = shipment.action, self._workspace
        write_atomically(log_path(action, workspace), answer["log"].encode(), workspace.build)
        if workspace.store.remote is not None:
            workspace.store.remote.forget_misses()
        if "done" in answer:
            shipment.promise.set_result(self._report(action, answer["done"], answer["worker"]))
        elif "refused" in answer:
            self._refuse(shipment, answer)
        elif "lost" in answer:
            lost = answer["lost"]
            CrashLog(workspace.logs, str(action.package)).write_step(lost["step"])
            raise WorkerLostError(
                lost["signals"], lost["stage"], lost["peak_bytes"], lost["system"]
            )
        else:
            raise PipelineError(f"worker {one_line(answer['worker'])}: {answer['missing']}")

    def _report(self, action: Action, done: Done, worker: str) -> Report:
        found, result = done["event"], done["result"]
        error = found["error"] or self._find_wrong(action, done)
        event = make_event(
            action,
            "failed" if error and found["outcome"] != "lost" else found["outcome"],
            start=min(found["start"], time.time() - found["seconds"]),  # by this machine's clock
            seconds=found["seconds"],
            stages=[tuple(each) for each in found["stages"]],
            stage=found["stage"],
            worker=self._lane(worker, found["worker"]),
            peak_bytes=found["peak_bytes"],
            error=error,
            log=log_name(action, self._workspace) if error else "",
        )
        usage = {kind: Usage(**each) for kind, each in done["usage"].items()}
        asked = done["remote"] and (Counts(**done["remote"][0]), done["remote"][1])
        return Report(event, usage, asked, result)

    def _find_wrong(self, action: Action, done: Done) -> str:
        """Say what is wrong with what a worker made; "" where it is here, and may be believed."""
        store, result = self._workspace.store, done["result"]
        try:
            if result is not None:
                wrong = find_wrong_result(store, action, result)
                return f"its worker's result is not used: {wrong}" if wrong else ""
            there = store.get(action.digest) is not None
        except MissingBlobError:
            there = False
        what = "its worker made it, and neither this store nor its remote has it"
        return "" if there else f"{what}; a worker must share one of them, and may write there"

    def _lane(self, worker: str, process: int) -> int:
        """Return the number of a process of the cluster, among those of this machine."""
        with self._lock:
            return self._lanes.setdefault((worker, process), _FIRST_LANE + len(self._lanes))

    def _fail(self, shipment: _Shipment, error: str) -> None:
        event = make_event(
            shipment.action,
            "failed",
            error=error,
            stage="dispatch",
            log=log_name(shipment.action, self._workspace),
        )
        shipment.promise.set_result(Report(event))

    def _refuse(self, shipment: _Shipment, answer: Answer) -> None:
        """Try another worker; an action that only facts of machines keep from all runs here."""
        worker, refused = one_line(answer["worker"]), answer["refused"]
        shipment.refused[worker] = refused["differences"]
        if set(self._workers()) - shipment.refused.keys():
            self._send(shipment)
            return
        why = f"worker {worker} is another: {one_line('; '.join(refused['differences']))}"
        if refused["here"]:
            _log.warning("%s runs on this machine: %s", shipment.action.title, why)
            self._run_here(shipment)
        else:
            raise PipelineError(f"no worker of {self._where} takes it: {why}")

    # What happens meanwhile

    def _hear(self, event: Any) -> None:
        """Hear what a worker says: how far an action is, or that it can take others."""
        _, said = event
        if fits(said, Said):
            with self._lock:
                shipment = self._shipments.get(said["parcel"])
            if shipment is not None:
                shipment.said = said
                path = progress_path(shipment.action, self._workspace)
                write_status(path, said["stage"], said["done"], said["total"])
        elif isinstance(said, dict) and "joined" in said:
            self._threads.submit(self._send_again)

    def _send_again(self) -> None:
        """Submit again what waits for a tag: dask looks at what a worker has when that joins, and
        its tags are known a moment later."""
        with self._lock:
            waiting = {k: s for k, s in self._shipments.items() if s.needs.tags and s.said is None}
        for key, shipment in waiting.items():
            if self._take_back(key) is not None:
                self._guarded(shipment, self._send)

    def _take_back(self, key: str) -> _Shipment | None:
        """Cancel a shipment, unless its answer came before."""
        with self._lock:
            shipment = self._shipments.pop(key, None)
        if shipment is not None:
            with suppress(OSError, TimeoutError):
                shipment.future.cancel()
        return shipment

    def _hear_of_workers(self, event: Any) -> None:
        _, said = event
        if isinstance(said, dict) and said.get("action") == "remove-worker":
            self._threads.submit(
                self._lose_worker, str(said.get("worker")), bool(said.get("expected"))
            )

    def _lose_worker(self, worker: str, expected: bool) -> None:
        """Give back what ran on a worker that is gone. dask would run it again, also where it is
        what ends workers; what waited there it may run elsewhere, as what a worker that was asked
        to go ran."""
        with self._lock:
            ran = {k: s.said for k, s in self._shipments.items() if s.said}
        for key, said in ran.items():
            if said["worker"] == worker and not expected and (shipment := self._take_back(key)):
                system = f"the cluster lost the worker {one_line(worker)}"
                lost = WorkerLostError("", said["stage"], said["peak_bytes"], system)
                shipment.promise.set_exception(lost)

    def free_memory(self) -> float:
        """Return infinity: workers have their memory as a resource, which dask shares out."""
        return math.inf

    def look(self) -> None:
        self._here.look()
        if self._client.status != "running":
            self._lose(f"the scheduler {self._where} was lost")
        elif time.monotonic() - self._looked > _BETWEEN_LOOKS:
            with suppress(OSError, TimeoutError):
                self._look_for_workers()
            self._looked = time.monotonic()

    def _lose(self, why: str) -> None:
        """Give up all that is under way in the cluster."""
        with self._lock:
            self._lost, lost = why, list(self._shipments.values())
            self._shipments.clear()
        for shipment in lost:
            shipment.promise.set_exception(ExecutorLostError(why))

    def _workers(self) -> Mapping[str, Any]:
        """Return what the scheduler knows of its workers, by address."""
        workers: Mapping[str, Any] = self._client.scheduler_info()["workers"]
        return workers

    def _look_for_workers(self) -> None:
        """Give up actions that no worker can take, once they have waited long enough."""
        workers = self._workers()
        self._width = sum(each["nthreads"] for each in workers.values())
        memory = (each["resources"].get(MEMORY, 0) for each in workers.values())
        self._most_memory = max(memory, default=0)
        with self._lock:
            waiting = {k: s for k, s in self._shipments.items() if s.said is None}
        since = min((each.since for each in waiting.values()), default=time.monotonic())
        late = time.monotonic() - since > PATIENCE
        if not workers and waiting and not self._told:
            _log.warning("%s has no worker yet; what is to be done waits for one", self._where)
            self._told = True
        for key, shipment in waiting.items() if workers and late else ():
            wanted = {f"{RESOURCE}{tag}" for tag in shipment.needs.tags}
            if any(wanted <= each["resources"].keys() for each in workers.values()):
                continue
            if self._take_back(key) is not None:
                lacking = ", ".join(sorted(shipment.needs.tags))
                what = f"no worker of {self._where} has what it needs: {lacking}"
                self._fail(shipment, f"{what} (`doit backends` there says what is missing)")

    def close(self) -> None:
        with self._lock:
            self._shipments.clear()
        self._here.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with suppress(OSError, TimeoutError):
            for topic in (TOPIC, "all"):
                self._client.unsubscribe_topic(topic)
            self._client.close(timeout=_CLOSE)
        if self._cluster is not None:
            with suppress(OSError, TimeoutError):
                self._cluster.close(timeout=_CLOSE)


def _silence() -> None:
    """Keep dask from printing what becomes of its connections: reports say it."""
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("distributed"):
            logging.getLogger(name).setLevel(_SILENT)


def _protocol() -> str:
    """Return the protocol by which a scheduler is spoken to: dask's own config may ask for TLS."""
    return "tls" if dask.config.get("distributed.comm.require-encryption", None) else "tcp"
