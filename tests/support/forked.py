"""doit in a fork of the test's process, which has torch and ExecuTorch loaded already.

Starting `doit` and its workers costs 15 CPU seconds of imports before they do anything. A fork
inherits the imports, discards all its changes when it ends, and performs its actions itself, one
after another. Behavior that depends on separate processes (kills, interrupts, imports, hash seeds,
modules patched by `sitecustomize`) is tested in real ones: `Bench.process`.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.quick_torch import make_torch_quick


@cache
def warm_up() -> None:
    """Import what builds need and let XNNPACK export its pattern graphs, once for all forks."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    import pipeline.run.perform
    import pipeline.run.prove.validate  # noqa: F401
    from pipeline.run.export.declared_reads import installed_distributions

    make_torch_quick()
    installed_distributions()
    torch.set_num_threads(1)
    program = torch.export.export(torch.nn.Linear(2, 2).requires_grad_(False), (torch.ones(1, 2),))
    to_edge_transform_and_lower({"forward": program}, partitioner=[XnnpackPartitioner()])
    gc.collect()
    gc.freeze()


@contextmanager
def forked_workers() -> Iterator[None]:
    """Make joblib start workers as forks of this process."""
    from joblib.externals.loky.backend import context

    warm_up()
    before = context.get_start_method()
    context.set_start_method("fork", force=True)
    try:
        yield
    finally:
        context.set_start_method(before, force=True)


def run_doit(
    root: Path,
    arguments: Sequence[str],
    environment: dict[str, str],
    timeout: float,
    prepare: Callable[[], None] = lambda: None,
) -> tuple[int, str]:
    """Run `doit` in a folder with an environment; return its exit status and output.

    `prepare` runs in the fork before the build starts.

    Raises:
        TimeoutError: doit took more than `timeout` seconds and was killed.
    """
    warm_up()
    with tempfile.TemporaryFile() as printed:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _become_doit(root, arguments, environment, printed.fileno(), prepare)
        status = _wait(child, timeout)
        printed.seek(0)
        return os.waitstatus_to_exitcode(status), printed.read().decode()


def run_in_fork(action: Callable[[], object], log: Path) -> int:
    """Run an action in a fork that prints to a file; return the wait status, 0 for success."""
    import torch

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            torch.set_num_threads(1)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(child, 0)[1]


def last_line(log: Path) -> str:
    """Return the last line that isn't blank, or "crashed"."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "crashed")


def _wait(child: int, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"doit took more than {timeout} s")
        time.sleep(0.01)


def _become_doit(
    root: Path,
    arguments: Sequence[str],
    environment: dict[str, str],
    output: int,
    prepare: Callable[[], None],
) -> None:
    """Turn this process, a fork, into doit, and end it whatever happens."""
    code = 99
    try:
        _print_to(output)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(root)
        sys.path.insert(0, str(root))
        from doit.doit_cmd import DoitMain

        use_no_workers()
        sys.argv = ["doit", *arguments]
        prepare()
        code = DoitMain().run(list(arguments)) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _print_to(output: int) -> None:
    """Print to a file through descriptors 1 and 2, which an action redirects to its log."""
    # Redirect pytest's streams too: doit keeps the sys.stdout that it saw when imported.
    for descriptor in {1, 2, sys.stdout.fileno(), sys.stderr.fileno()}:
        os.dup2(output, descriptor)
    sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    logging.root.handlers.clear()  # pytest's
    for known in logging._handlerList:  # type: ignore[attr-defined]
        if isinstance(handler := known(), logging.StreamHandler):  # torch's
            handler.setStream(sys.stderr)


def use_no_workers() -> None:
    """Make doit perform all actions in this process."""
    from pipeline.run import pool
    from pipeline.run.executors import local

    pool.Pool = _PoolOfOne  # type: ignore[misc, assignment]
    local.start_ahead = lambda workspace, workers: None


class _PoolOfOne:
    """A pool that performs actions in this process."""

    def __init__(self, workspace: Any, jobs: int, always: bool) -> None:
        from dataclasses import replace

        self._workspace = replace(workspace)
        self._always = always
        self.jobs = 1
        self.idle_seconds = 0.0
        self._waiting: list[Any] = []
        # Workers haven't loaded it, and `inspect.getmodule` looks at the files of all modules.
        sys.modules.pop("dodo", None)

    def tell(self, stream: Any) -> None:
        pass

    def use_idle_core(self, work: Any) -> None:
        pass

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def add(self, actions: Sequence[Any]) -> None:
        self._waiting += actions

    def drop_waiting(self) -> list[Any]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def next_reports(self) -> Iterator[tuple[Any, Any]]:
        from pipeline.plan.requests import write_request
        from pipeline.run.action_status import log_path
        from pipeline.run.worker import run
        from pipeline.store.files import remove

        action = self._waiting.pop(0)
        remove(log_path(action, self._workspace))
        request = write_request(action, self._workspace.root)
        yield action, run(request, self._workspace, self._always)

    def close(self) -> None:
        pass
