"""The connection to dask's scheduler, and the cluster that is started if there is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import dask
from distributed import Client, LocalCluster

from pipeline.features.cluster.agent import Resources
from pipeline.features.cluster.forms import TOPIC
from pipeline.run.executors import ExecutorLostError
from pipeline.run.worker_group import starting_workers
from pipeline.store.reasons import reason
from pipeline.store.toolchain import HASH_SEED

_CONNECT = "10s"
_ANSWER = 10.0  # seconds
_CLOSE = 5.0  # seconds
# Code that workers started here run first. Ctrl-C in a terminal reaches them, too, but this process
# has to handle it. Their module path is this process's, with the workspace first.
_PRELOAD = """\
import signal
from pte_pipeline.name_conflict import claim_pipeline
signal.signal(signal.SIGINT, signal.SIG_IGN)
claim_pipeline()
"""
_SILENT = logging.CRITICAL + 1
# For the cluster started here, which shares its cores with the actions. By default, each of its
# processes samples its stacks and checks its event loop up to 100 times a second.
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}


class Connection:
    """A client of a scheduler whose workers have this package.

    Args:
        where: `dask://host:port`, or `dask` for a cluster of `jobs` workers on this machine.

    Raises:
        ExecutorLostError: the scheduler can't be reached, or its workers lack this package.
    """

    def __init__(self, where: str, jobs: int) -> None:
        self._cluster: LocalCluster | None = None
        address: Any = f"{_protocol()}://{where.partition('://')[2]}"
        try:
            with starting_workers():
                if where == "dask":
                    address = self._cluster = _start_cluster(jobs)
                self.client = Client(address, timeout=_CONNECT, set_as_default=False)
            _silence()
            self.client.register_plugin(Resources(), name=TOPIC)
        except (OSError, TimeoutError) as error:
            message = f"no scheduler answers at {address}: {reason(error)}"
            raise ExecutorLostError(message) from None
        except ImportError as error:
            message = f"a worker of {where} can't import pte-pipeline: {reason(error)}"
            raise ExecutorLostError(message) from None

    def listen(
        self, to_parcels: Callable[[Any], Any], to_workers: Callable[[Any], Any]
    ) -> None:
        """Subscribe to the workers' events about parcels, and to events about the workers."""
        self.client.subscribe_topic(TOPIC, to_parcels)
        self.client.subscribe_topic("all", to_workers)

    @property
    def runs(self) -> bool:
        return bool(self.client.status == "running")

    def workers(self) -> Mapping[str, Any]:
        """Return the scheduler's description of its workers, by address. Raises OSError."""
        scheduler = self.client.scheduler
        description: Mapping[str, Any] = self._ask(scheduler.identity, n_workers=-1)
        workers: Mapping[str, Any] = description["workers"]
        return workers

    def find_assigned(self, worker: str) -> list[str]:
        """Return the keys of the tasks assigned to a worker. Raises OSError."""
        assigned = self._ask(self.client.scheduler.processing, workers=[worker])
        keys: list[str] = assigned.get(worker, [])
        return keys

    def _ask(self, question: Callable[..., Any], **arguments: Any) -> Any:
        """Ask the scheduler, with a timeout, since it may have been stopped."""
        return self.client.sync(question, callback_timeout=_ANSWER, **arguments)

    def close(self) -> None:
        with suppress(OSError, TimeoutError):
            for topic in (TOPIC, "all"):
                self.client.unsubscribe_topic(topic)
            self.client.close(timeout=_CLOSE)
        if self._cluster is not None:
            with suppress(OSError, TimeoutError):
                self._cluster.close(timeout=_CLOSE)


def _start_cluster(jobs: int) -> LocalCluster:
    seed = os.environ.get(HASH_SEED)
    with dask.config.set(_QUIET):
        cluster = LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address="127.0.0.1:0",  # any free port
            preload=[_PRELOAD],
            silence_logs=_SILENT,
        )
    # Before each worker, nannies set variables of this process, including a hash seed, which the
    # keys of exports contain: no later run would find these exports again.
    for nanny in cluster.workers.values():
        nanny.pre_spawn_env.pop(HASH_SEED, None)
    if seed is None:
        os.environ.pop(HASH_SEED, None)
    else:
        os.environ[HASH_SEED] = seed
    return cluster


def _silence() -> None:
    """Keep dask from printing the state of its connections, which reports already show."""
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("distributed"):
            logging.getLogger(name).setLevel(_SILENT)


def _protocol() -> str:
    """Return the protocol for talking to the scheduler, since dask's config may require TLS."""
    return (
        "tls" if dask.config.get("distributed.comm.require-encryption", None) else "tcp"
    )
