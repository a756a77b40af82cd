"""Workers that are forks of their owner, in which torch and ExecuTorch are loaded already."""

from __future__ import annotations

import os
import signal
import threading
import traceback


class ForkedWorker:
    """A fork that serves, with as much of a `Popen` as a `WorkerProcess` asks of one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self, options: int = os.WNOHANG) -> int | None:
        with self._lock:
            if self.returncode is None:
                found, status = os.waitpid(self.pid, options)
                self.returncode = os.waitstatus_to_exitcode(status) if found else None
            return self.returncode

    def wait(self) -> int | None:
        return self.poll(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_worker(numbers: tuple[int, int, int, int], environment: dict[str, str]) -> ForkedWorker:
    """Take the place of `process.launch`."""
    from pipeline.run.executors.process import serve

    if child := os.fork():
        return ForkedWorker(child)
    try:
        os.environ.update(environment)
        serve(*numbers)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
