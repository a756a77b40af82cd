"""A worker process: a Python that makes the calls which come through a pipe, one after another.

It needs nothing but two pipes. A pool of joblib's or of the standard library does the same with
semaphores, and with one or two more Pythons that track them: 60 MB of a run with one worker.
"""

from __future__ import annotations

import copyreg
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

from pipeline.run.worker_group import join, starting_workers

_T = TypeVar("_T")
# It finds modules as its owner does, wherever that was started.
_CODE = """\
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from pipeline.run.executors.process import serve
serve(*map(int, sys.argv[1:]))
"""


def _make_proxy(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


copyreg.pickle(MappingProxyType, lambda proxy: (_make_proxy, (dict(proxy),)))  # type: ignore[arg-type]


class WorkerDiedError(Exception):
    """A worker process ended before it answered; the message says how, as "SIGKILL(-9)"."""


class WorkerProcess:
    """A process that makes calls in the order of `submit`, in a process group (`WorkerGroup`).

    Args:
        environment: variables of the process beside those of this one.
    """

    def __init__(self, group: int, environment: Mapping[str, str]) -> None:
        theirs, ours = os.pipe()
        answers, written = os.pipe()
        with starting_workers():
            self._process = launch((theirs, written, group, os.getpid()), environment)
        os.close(theirs)
        os.close(written)
        self._calls, self._answers = os.fdopen(ours, "wb"), os.fdopen(answers, "rb")
        self._thread = ThreadPoolExecutor(max_workers=1)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def submit(self, function: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Let the process call a function of a module. The future raises WorkerDiedError."""
        return self._thread.submit(self._call, function, arguments)

    def _call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        call = pickle.dumps((function, arguments))
        try:
            self._calls.write(call)
            self._calls.flush()
            return pickle.load(self._answers)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self._process.kill()  # if it lives, it does without its pipes
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else "EXIT"
            raise WorkerDiedError(f"{how}({code})") from error

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._process.wait()
        for pipe in (self._calls, self._answers):
            with suppress(OSError):  # what nobody reads any more
                pipe.close()


def launch(
    numbers: tuple[int, int, int, int], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a Python that serves; `numbers` are the arguments of `serve`."""
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, *map(str, numbers), json.dumps(sys.path)],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        pass_fds=numbers[:2],
    )


def serve(calls: int, answers: int, group: int, parent: int) -> None:
    """Make the calls that come from one file descriptor, and write what they return to another."""
    join(group, parent)
    del sys.argv[1:]  # these are no business of what it runs
    with os.fdopen(calls, "rb") as incoming, os.fdopen(answers, "wb") as outgoing:
        for pipe in (incoming, outgoing):  # so that they end with this process, whatever it starts
            os.set_inheritable(pipe.fileno(), False)
            os.register_at_fork(after_in_child=pipe.close)
        while True:
            try:
                function, arguments = pickle.load(incoming)
            except EOFError:
                return
            pickle.dump(function(*arguments), outgoing)
            outgoing.flush()
