"""What happens around an action in a worker process: its log, its memory, its end.

A worker gives a result or an error back as data and never lets an exception out, since joblib
would end the other workers' tasks with it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.plan.actions import Action
from pipeline.run.stages import IMPORT, Stages
from pipeline.store.errors import PipelineError
from pipeline.store.maintenance import Usage
from pipeline.store.store import MissingBlobError
from pipeline.store.workspace import Workspace

_PR_SET_PDEATHSIG = 1
_SECONDS_BETWEEN_STEPS = 0.1
_ready = False


@dataclass(frozen=True)
class Report:
    """How an action went; `error` is empty when it went well. Seconds are of wall time.

    `missing`: something that it needs is no longer in the store. `done`: another process had done
    it. `usage`: what the caches inside the action were asked, and `remote` what the remote tier.
    `worker` is the process that performed it, from `started` on (seconds of the clock), and `spans`
    are its stages, with begin and end in seconds from there.
    """

    error: str = ""
    missing: bool = False
    done: bool = False
    stage: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    remote: Any = None
    worker: int = 0
    started: float = 0.0
    spans: tuple[tuple[str, float, float], ...] = ()


def log_path(action: Action, workspace: Workspace) -> Path:
    folder = workspace.logs / (action.package or "models")
    return folder / f"{action.kind}-{action.method or action.model}.log"


def progress_path(action: Action, workspace: Workspace) -> Path:
    """Where an action under way says how far it is."""
    return log_path(action, workspace).with_suffix(".progress")


def progress_of(action: Action, workspace: Workspace) -> tuple[int, int] | None:
    """How many of how many steps an action under way has done, if it says so."""
    try:
        done, total = progress_path(action, workspace).read_text().split()
        return int(done), int(total)
    except (OSError, ValueError):  # not there, or half written
        return None


def _teller(path: Path) -> Callable[[int, int], None]:
    """Says in a file how far an action is, a few times a second."""
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if total > 1 and now - last > _SECONDS_BETWEEN_STEPS:
            last = now
            with suppress(OSError):
                path.write_text(f"{done} {total}")

    return tell


def run(action: Action, workspace: Workspace, parent: int, always: bool = False) -> Report:
    """Performs an action, with all that it prints in its log."""
    steps = progress_path(action, workspace)
    stages = Stages(_teller(steps))
    started, clock = time.perf_counter(), time.time()
    remote = workspace.store.remote
    if remote is not None:
        remote.counts = type(remote.counts)()  # of this action alone
    try:
        _prepare(parent)
        with _logging_to(log_path(action, workspace)), _without_garbage_collection():
            _reset_peak()
            report = _perform(action, workspace, stages, always)
    except OSError as problem:
        report = Report(error=_of_system(problem))
    finally:
        with suppress(OSError):
            steps.unlink(missing_ok=True)
    return replace(
        report,
        stage=stages.current,
        seconds=time.perf_counter() - started,
        peak_bytes=_peak(),
        stages=stages.seconds,
        remote=remote and (remote.counts, remote.problem),
        worker=os.getpid(),
        started=clock,
        spans=tuple((name, begin - started, end - started) for name, begin, end in stages.spans),
    )


def _perform(action: Action, workspace: Workspace, stages: Stages, always: bool) -> Report:
    try:
        with stages.stage(IMPORT):
            from pipeline.compile.preprocess.cache import counted_preprocess
            from pipeline.run.perform import perform
        with counted_preprocess() as counts:
            done = perform(action, workspace, stages, always)
        made = Usage(counts.hits, counts.misses, counts.saved, counts.seconds)
        usage = {"preprocess": made} if counts.hits or counts.misses else {}
        return Report(done=done, usage=usage)
    except MissingBlobError as problem:
        traceback.print_exc()
        return Report(error=str(problem), missing=True)
    except PipelineError as problem:
        traceback.print_exc()
        return Report(error=str(problem))
    except OSError as problem:
        traceback.print_exc()
        return Report(error=_of_system(problem))
    except MemoryError:
        return Report(error="out of memory")
    except BaseException as problem:  # SystemExit too: it would end the worker in silence
        traceback.print_exc()
        first = str(problem).strip().split("\n")[0]
        name = type(problem).__name__
        return Report(error=f"{name}: {first}" if first else name)


def _of_system(problem: OSError) -> str:
    where = f"{problem.filename}: " if problem.filename else ""
    return f"{where}{problem.strerror or problem}"


def _prepare(parent: int) -> None:
    """Once per process: it dies with its parent, leaves Ctrl-C to it, and computes on one thread,
    so that results depend neither on the number of workers nor on that of cores."""
    global _ready
    if _ready:
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    _ready = True


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Sends the file descriptors of standard output and error, native code's too, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = [os.dup(fd) for fd in (1, 2)]
    with open(path, "w", encoding="utf-8", errors="replace") as log:
        try:
            for fd in (1, 2):
                os.dup2(log.fileno(), fd)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd, original in zip((1, 2), saved, strict=True):
                os.dup2(original, fd)
                os.close(original)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collection costs 11 to 20 % of lowering, whose graphs live to its end anyway."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        gc.collect()


def _reset_peak() -> None:
    with suppress(OSError), open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def _peak() -> int:
    """Peak resident memory in bytes since `_reset_peak`; of the whole process off Linux."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
