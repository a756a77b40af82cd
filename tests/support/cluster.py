"""A dask scheduler and its workers on loopback, each a process in a separate folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import descendants, gone, wait_for


class Cluster:
    """A cluster whose workers each have a store and share only a remote.

    `remote` holds the variables that point a process to the remote.
    """

    def __init__(self, folder: Path, workers: int, remote: Mapping[str, str]) -> None:
        self.folder = folder
        self.remote = remote
        self._file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--no-dashboard", "--port", "0")
        wait_for(self._file.exists)
        self.workers = [self.start_worker(number) for number in range(workers)]

    @property
    def address(self) -> str:
        there: str = json.loads(self._file.read_text())["address"]
        return there.replace("tcp", "dask", 1)

    def start_worker(
        self, number: int, environment: Mapping[str, str] | None = None, *more: str
    ) -> subprocess.Popen[bytes]:
        own = self.folder / f"worker{number}"
        own.mkdir(exist_ok=True)
        options = ("--nthreads", "1", "--no-dashboard", "--memory-limit", "0", "--no-nanny")
        given = {"PTE_PIPELINE_STORE": str(own / "store"), **self.remote, **(environment or {})}
        named = ("--name", f"worker{number}", "--local-directory", str(own))
        return self._start("worker", *options, *named, *more, folder=own, environment=given)

    def _start(
        self,
        what: str,
        *options: str,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}"]
        with open(self.folder / f"{what}.log", "ab") as log:
            return subprocess.Popen(
                [*command, "--scheduler-file", str(self._file), "--host", "127.0.0.1", *options],
                cwd=folder or self.folder,
                env={**os.environ, **(environment or {})},
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return (self.folder / "worker.log").read_text(errors="replace")

    def close(self) -> None:
        every = [*self.workers, self.scheduler]
        started = set().union(*(descendants(process.pid) for process in every))
        for process in every:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert gone(started, 10)  # a worker's child processes end with it


@contextmanager
def running_cluster(
    folder: Path, workers: int = 2, remote: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Run a cluster; by default its remote is a folder."""
    there = {
        "PTE_PIPELINE_REMOTE": f"file://{folder}/remote",
        "PTE_PIPELINE_REMOTE_TRUST": "unsigned",
    }
    cluster = Cluster(folder, workers, remote or there)
    try:
        yield cluster
    finally:
        cluster.close()
