"""A worker process around an action: its log, its memory, its end.

A worker gives a result or an error back as data and never lets an exception out: an executor need
not carry exceptions, and what one holds might not unpickle.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.plan.actions import Action
from pipeline.plan.requests import read_names, read_request
from pipeline.report.events import Event, Outcome, make_event
from pipeline.run.action_log import logging_to
from pipeline.run.imports import import_executorch, import_numpy, keeping_all
from pipeline.run.stages import IMPORT, Stages, held_memory, reset_peak
from pipeline.run.under_way import log_name, log_path, progress_path, write_status
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.files import make_folder, remove
from pipeline.store.remedies import add_remedy
from pipeline.store.store import MissingBlobError
from pipeline.store.usage import Usage
from pipeline.store.workspace import Workspace

_log = logging.getLogger(__name__)
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


def run(request: str, workspace: Workspace, always: bool) -> Report:
    """Perform a requested action, whatever the store holds if `always`, with all that it prints in
    its log."""
    names = read_names(request)
    if (remote := workspace.store.remote) is not None:
        remote.counts = type(remote.counts)()  # of this action alone

    def perform(stages: Stages) -> _Done:
        try:
            log = log_path(names, workspace)
            make_folder(log.parent, workspace.build)
            with worker_process(seldom=names.kind != "validate"), logging_to(log):
                return _perform(read_request(request, workspace), workspace, stages, always)
        except PipelineError as problem:  # with the config, which can't be parsed here
            return _Done("failed", str(problem))
        except OSError as problem:
            return _Done("failed", add_remedy(describe_error(problem), error=problem))

    report = _report(names, workspace, perform)
    assert report is not None
    if remote is None:
        return report
    return report._replace(remote=(remote.counts, remote.problem))


def may_run_here(action: Action, workspace: Workspace) -> bool:
    """Tell whether an action is of a kind into whose results new weights may be put."""
    return workspace.refit and action.kind in ("compile", "link")


def run_here(action: Action, workspace: Workspace, begins: Callable[[], None]) -> Report | None:
    """Put new weights into what an action made before, in the process that builds, and files into
    the package's folder; None where it has to be run.

    What can't be done here, for whatever reason, a worker tries again and tells. `begins` is called
    when there is something to do, and as it goes on.
    """

    def note(stage: str, done: int, total: int) -> None:
        if stage != "load":  # in which it is found out
            begins()

    reset_peak()
    try:
        return _report(action, workspace, partial(_refit, action, workspace, here=True), note)
    except (OSError, PipelineError):
        return None
    except Exception as error:
        _log.warning("%s is run by a worker, since %s", action.title, describe_error(error))
        return None


def _report(
    action: Action,
    workspace: Workspace,
    perform: Callable[[Stages], _Done | None],
    note: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Report | None:
    """Call what performs an action, and report what came of it, if anything did. `note` is told of
    its stages, as `Stages` tells."""
    status = progress_path(action, workspace)

    def tell(stage: str, done: int, total: int) -> None:
        write_status(status, stage, done, total)
        note(stage, done, total)

    stages = Stages(tell)
    started, clock = time.perf_counter(), time.time()
    try:
        done = perform(stages)
    finally:
        with suppress(OSError):
            remove(status)
    if done is None:
        return None
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
    return Report(event, done.usage, None, done.result)


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


def _refit(
    action: Action, workspace: Workspace, stages: Stages, here: bool = False
) -> _Done | None:
    """Put new weights into what an action made before, if that is known to give what it makes; None
    where it is not. Imports no torch, unless a recipe needs it. `here`: in the process that
    builds."""
    delivered: list[Mapping[str, Any]] = []
    done = False
    if action.kind == "compile":
        import_numpy()
        from pipeline.run.build.refit import refit_unit

        done = refit_unit(action, workspace, stages, here)
    elif action.kind == "link":
        from pipeline.run.build.link import Deliver, relink_package
        from pipeline.run.install import install

        if here:  # the package's folder is this process's to write, and spares it a copy
            deliver: Deliver = partial(install, workspace, action)
        else:
            deliver = lambda result, _: delivered.append(result)  # noqa: E731
        done = relink_package(action, workspace, stages, deliver)
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
    reset_peak()
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
