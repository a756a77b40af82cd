"""A worker process around an action: its log, its memory, its end.

A worker gives a result or an error back as data and never lets an exception out, since joblib
would end the other workers' tasks with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, TypedDict

from pipeline.plan.actions import Action
from pipeline.report.events import Event, Outcome, make_event
from pipeline.run.action_log import logging_to
from pipeline.run.imports import import_executorch, keeping_all
from pipeline.run.stages import IMPORT, Stages, held_memory
from pipeline.store.errors import describe_error
from pipeline.store.files import clear_place, make_folder, read_record, remove
from pipeline.store.forms import fits
from pipeline.store.names import shorten_name
from pipeline.store.store import MissingBlobError
from pipeline.store.usage import Usage
from pipeline.store.workspace import Workspace

_LARGE = 4 << 30  # bytes of resident memory from which on all objects are collected
_SELDOM = (100_000, 4, 100)  # as `gc.set_threshold` takes them; Python's are 700, 10, 10
# Caches without a bound, which keep each program that was lowered, with its weights.
_CACHES = (
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("executorch.exir.backend.utils", "is_same_node"),
)


class Report(NamedTuple):
    """An action's event, and what it asked of the caches inside it and of the remote tier.

    `remote` holds the counts, and why the remote was given up or "". `result` is that of a kind
    that makes files, of a validation that failed too; they are not in the package's folder yet.
    """

    event: Event
    usage: Mapping[str, Usage] = MappingProxyType({})
    remote: tuple[Any, str] | None = None
    result: Mapping[str, Any] | None = None


class _Done(NamedTuple):
    """How an action ended: `error` is "" where it did not fail, `usage` what the caches inside it
    were asked."""

    outcome: Outcome
    error: str = ""
    usage: Mapping[str, Usage] = MappingProxyType({})
    result: Mapping[str, Any] | None = None


def log_path(action: Action, workspace: Workspace) -> Path:
    folder = workspace.logs / (action.package or "models")
    return folder / f"{shorten_name(f'{action.kind}-{action.method or action.model}')}.log"


def progress_path(action: Action, workspace: Workspace) -> Path:
    """Return the file in which an action under way says how far it is."""
    return log_path(action, workspace).with_suffix(".progress")


def read_status(path: Path) -> dict[str, Any]:
    """Read the file in which an action under way says how far it is; empty where it says nothing
    yet."""
    found = read_record(path)
    return found if found and fits(found, _Status) else {}


class _Status(TypedDict):
    """The progress of an action: its process, its stage, how many of how many steps are done, and
    the machine that it runs on, if that is another one."""

    pid: int
    stage: str
    done: int
    total: int
    host: NotRequired[str]


class UnderWay(NamedTuple):
    """The stage that an action is in, how many of how many steps of it are done, and the machine of
    a cluster that it runs on."""

    stage: str
    done: int = 0
    total: int = 0
    host: str = ""


def read_progress(action: Action, workspace: Workspace) -> UnderWay | None:
    """Return how far an action is that is under way, None for any other."""
    if not (status := read_status(progress_path(action, workspace))):
        return None
    return UnderWay(status["stage"], status["done"], status["total"], status.get("host", ""))


def write_status(path: Path, stage: str, done: int, total: int, host: str = "") -> None:
    """Write the file in which an action under way says how far it is."""
    status = {"pid": os.getpid(), "stage": stage, "done": done, "total": total, "host": host}
    with suppress(OSError):
        clear_place(path)
        path.write_text(json.dumps(status))


def log_name(action: Action, workspace: Workspace) -> str:
    """Return the path of an action's log in the workspace."""
    return str(log_path(action, workspace).relative_to(workspace.root))


def run(action: Action, workspace: Workspace, always: bool) -> Report:
    """Perform an action, whatever the store holds if `always`, with all that it prints in its
    log."""
    status = progress_path(action, workspace)
    stages = Stages(partial(write_status, status))
    started, clock = time.perf_counter(), time.time()
    if (remote := workspace.store.remote) is not None:
        remote.counts = type(remote.counts)()  # of this action alone
    try:
        log = log_path(action, workspace)
        make_folder(log.parent, workspace.build)
        with worker_process(seldom=action.kind != "validate"), logging_to(log):
            done = _perform(action, workspace, stages, always)
    except OSError as problem:
        done = _Done("failed", describe_error(problem))
    finally:
        with suppress(OSError):
            remove(status)
    event = make_event(
        action,
        done.outcome,
        start=clock,
        seconds=time.perf_counter() - started,
        stages=[
            (n, begin - started, end - started) for n, begin, end in [*stages.spans, *stages.steps]
        ],
        stage=stages.current,
        worker=os.getpid(),
        peak_bytes=stages.peak,
        error=done.error,
        log=log_name(action, workspace) if done.error else "",
    )
    asked = (remote.counts, remote.problem) if remote is not None else None
    return Report(event, done.usage, asked, done.result)


def import_ahead(workspace: Workspace) -> None:
    """Import what actions need before there is one. What goes wrong does so again in its log."""
    with suppress(Exception), logging_to(workspace.logs / "imports.log"), keeping_all():
        _prepare()
        if workspace.fast_lowering:
            import_executorch()
        import pipeline.run.perform  # noqa: F401


def _perform(action: Action, workspace: Workspace, stages: Stages, always: bool) -> _Done:
    from pipeline.run.trace.isolated import ChildError, run_isolated  # no matter of a no-op run

    try:
        wanted = workspace.refit and not always
        if wanted and (found := _refit(action, workspace, stages)) is not None:
            return found
        with stages.stage(IMPORT), keeping_all():
            _prepare()
            if workspace.fast_lowering:
                import_executorch()
            from pipeline.run.build.pass_reads import check_pass_reads, watch_passes
            from pipeline.run.perform import runs_user_code
        if not runs_user_code(action):
            return _perform_here(action, workspace, stages, always)
        # Whatever else loads libraries of operators, a compile of the same ones is watched.
        compiled = action.kind == "compile" and {"passes", "operators"} & action.key.keys()
        watch = watch_passes(workspace) if compiled else None
        asked = _asked(workspace)
        if asked and watch is not None:  # or passes would seem to depend on the network
            asked[2] = True
        work = partial(_perform_apart, action, workspace, stages, always, asked)
        apart = run_isolated(work, watch, stages)
        if workspace.store.remote is not None and watch is None:
            workspace.store.remote.join(*apart[3])
        for result in apart[-1]:  # what is not kept by now, since nobody knows what it depends on
            if watch is not None:
                check_pass_reads(action, workspace, watch)
            workspace.store.put_result(*result)
    except ChildError as problem:  # whose traceback is in the log
        if problem.signal:  # so this worker's end tells more: it is tried again, alone
            os.kill(os.getpid(), problem.signal)
        return _Done("failed", str(problem))
    except BaseException as problem:
        traceback.print_exc()
        return _Done("failed", describe_error(problem))
    outcome, error, usage, _, result, _ = apart
    return _Done(outcome, error, {kind: Usage(**each) for kind, each in usage.items()}, result)


def _refit(action: Action, workspace: Workspace, stages: Stages) -> _Done | None:
    """Put new weights into what an action made before, if that is known to give what it makes; None
    where it is not. Imports no torch."""
    delivered: list[Mapping[str, Any]] = []
    done = False
    if action.kind == "compile":
        from pipeline.run.build.refit import refit_unit

        done = refit_unit(action, workspace, stages)
    elif action.kind == "link":
        from pipeline.run.build.link import relink_package

        done = relink_package(action, workspace, stages, delivered.append)
    return _Done("refit", "", {}, delivered[-1] if delivered else None) if done else None


def _asked(workspace: Workspace) -> list[Any]:
    """Return what came of the remote tier in this process; empty where there is none."""
    remote = workspace.store.remote
    return [] if remote is None else remote.outcome()


def _perform_apart(
    action: Action, workspace: Workspace, stages: Stages, always: bool, asked: list[Any]
) -> list[Any]:
    """Perform an action in this process, which is its own; return what happened as JSON. `asked`
    came of the remote tier before, in the process that this one is a fork of. What only the remote
    has is lost to one that doesn't ask it, and fetched before it runs again."""
    if asked and (remote := workspace.store.remote) is not None:
        remote.join({}, *asked[1:])
    compiled: list[Any] = []
    done = _perform_here(action, workspace, stages, always, lambda *result: compiled.append(result))
    counts = {kind: vars(each) for kind, each in done.usage.items()}
    return [done.outcome, done.error, counts, _asked(workspace), done.result, compiled]


def _perform_here(
    action: Action, workspace: Workspace, stages: Stages, always: bool, keep: Any = None
) -> _Done:
    from pipeline.compile.preprocess.cache import counted_preprocess
    from pipeline.run.explain_error import explain_error
    from pipeline.run.perform import perform
    from pipeline.run.trace.isolated import ChildError

    delivered: list[Mapping[str, Any]] = [{}]
    try:
        with counted_preprocess() as counts:
            found = perform(action, workspace, stages, always, keep, delivered.append)
        made = Usage(counts.hits, counts.misses, counts.saved, counts.seconds)
        usage = {"preprocess": made} if counts.hits or counts.misses else {}
        return _Done("hit" if found else "built", "", usage, delivered[-1] or None)
    except MissingBlobError as problem:
        traceback.print_exc()
        return _Done("lost", str(problem))
    except ChildError as problem:  # whose traceback is in the log
        if problem.signal == signal.SIGKILL:  # as for lack of memory: tried again, alone
            os.kill(os.getpid(), signal.SIGKILL)
        return _Done("failed", str(problem))
    except BaseException as problem:  # SystemExit too: it would end the worker in silence
        traceback.print_exc()
        said = explain_error(problem, workspace.root)
        return _Done("failed", said, {}, delivered[-1] or None)


@contextmanager
def worker_process(seldom: bool) -> Iterator[None]:
    """Prepare a worker process for an action, during which it collects garbage as usual or seldom.

    As usual that costs 11 to 20 % of lowering, most of whose objects live to its end; seldom it
    costs 1 to 3 %, and memory of graphs that passes are done with is used again. Validation makes
    modules and packages for each method, and is done with them one after another. Afterwards only
    what the action made is looked at: torch's own 400,000 objects stay frozen, unless the process
    has grown so large that something may hide among them.
    """
    gc.freeze()
    usual = gc.get_threshold()
    if seldom:
        gc.set_threshold(*_SELDOM)
    with suppress(OSError), open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")  # resets the peak
    try:
        yield
    finally:
        _forget_programs()
        gc.set_threshold(*usual)
        if held_memory("VmRSS") > _LARGE:
            gc.unfreeze()
        gc.collect()


def _forget_programs() -> None:
    for module, name in _CACHES:
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()


@cache
def _prepare() -> None:
    """Compute on one thread in this process, so that results depend neither on the number of
    workers nor on that of cores."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.set_default_device(None)  # whatever a plugin did when it was imported
    torch.set_default_dtype(torch.float32)
