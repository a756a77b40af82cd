"""A worker around an action: its log, its stages, its report.

A worker gives a result or an error back as data and never lets an exception out: an executor need
not carry exceptions, and what one holds might not unpickle.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.plan.requests import read_names, read_request
from pipeline.report.events import make_event
from pipeline.run.action_log import logging_to
from pipeline.run.action_status import log_name, log_path, progress_path, write_status
from pipeline.run.imports import import_numpy, keeping_all
from pipeline.run.performed import Report, perform_here, perform_isolated
from pipeline.run.stages import IMPORT, Stages, reset_peak
from pipeline.run.worker_process import import_libraries, worker_process
from pipeline.store.errors import PipelineError, describe_error, log_traceback
from pipeline.store.files import make_folder, remove
from pipeline.store.remedies import add_remedy
from pipeline.store.workspace import Workspace

_log = logging.getLogger(__name__)


def run(request: str, workspace: Workspace, always: bool) -> Report:
    """Perform a requested action, whatever the store holds if `always`, with all that it prints in
    its log."""
    names = read_names(request)
    if (remote := workspace.store.remote) is not None:
        remote.counts = type(remote.counts)()  # of this action alone

    def perform(stages: Stages) -> Report:
        try:
            log = log_path(names, workspace)
            make_folder(log.parent, workspace.build)
            with worker_process(seldom=names.kind != "validate"), logging_to(log):
                action = read_request(request, workspace)
                return perform_reported(action, workspace, stages, always)
        except PipelineError as problem:  # with the config, which can't be parsed here
            return Report(make_event(names, "failed", error=str(problem)))
        except OSError as problem:
            error = add_remedy(describe_error(problem), error=problem)
            return Report(make_event(names, "failed", error=error))

    was_filled = workspace.store.is_filled()
    report = _report(names, workspace, perform)
    if report and report.event.error and workspace.store.is_filled() > was_filled:
        # Its disk became full under the action, whose results now go to the overflow.
        report = _report(names, workspace, perform)
    assert report is not None
    if remote is None:
        return report
    return report._replace(remote=(remote.counts, remote.problem))


def may_refit_here(action: Action, workspace: Workspace) -> bool:
    """Tell whether an action is of a kind into whose results new weights may be put."""
    return workspace.refit and action.kind in ("compile", "link")


def may_judge_here(action: Action, workspace: Workspace) -> bool:
    """Tell whether an action judges a package that was measured before."""
    if not isinstance(action.inputs, ValidateInputs):
        return False
    from pipeline.run.prove.measured import is_measured

    return is_measured(action, workspace)


def run_here(
    action: Action, workspace: Workspace, begins: Callable[[], None]
) -> Report | None:
    """Put new weights into what an action made before, or judge what was measured before, in the
    process that builds, without torch; None where it has to be run.

    What can't be done here, for whatever reason, a worker tries again and tells. `begins` is called
    when there is something to do, and as it goes on.
    """

    def note(stage: str, steps_done: int, total: int) -> None:
        if stage != "load":  # in which it is found out
            begins()

    perform: Callable[[Stages], Report | None]
    if action.kind == "validate":
        perform = partial(_judge, action, workspace)
    else:
        perform = partial(_refit, action, workspace, here=True)
    reset_peak()
    try:
        return _report(action, workspace, perform, note)
    except (OSError, PipelineError):
        return None
    except Exception as error:
        _log.warning(
            "%s is run by a worker, since %s", action.title, describe_error(error)
        )
        return None


def _report(
    action: Action,
    workspace: Workspace,
    perform: Callable[[Stages], Report | None],
    note: Callable[[str, int, int], None] = lambda stage, steps_done, total: None,
) -> Report | None:
    """Call what performs an action, and report what came of it, if anything did. `note` is told of
    its stages, as `Stages` tells."""
    status = progress_path(action, workspace)

    def tell(stage: str, steps_done: int, total: int) -> None:
        write_status(status, stage, steps_done, total)
        note(stage, steps_done, total)

    stages = Stages(tell)
    started, clock = time.perf_counter(), time.time()
    try:
        report = perform(stages)
    finally:
        with suppress(OSError):
            remove(status)
    if report is None:
        return None
    event = report.event._replace(
        start=clock,
        seconds=time.perf_counter() - started,
        stages=_describe_spans(stages, started),
        stage=stages.current,
        worker=os.getpid(),
        peak_bytes=stages.peak,
        log=log_name(action, workspace) if report.event.error else "",
    )
    return report._replace(event=event)


def _describe_spans(stages: Stages, started: float) -> list[tuple[str, float, float]]:
    """Return the stages and steps of an action, in seconds since it started."""
    spans = []
    for name, begin, end in [*stages.spans, *stages.steps]:
        spans.append((name, begin - started, end - started))
    return spans


def import_ahead(workspace: Workspace) -> None:
    """Import what actions need before there is one. What goes wrong does so again in its log."""
    with suppress(Exception), logging_to(workspace.logs / "imports.log"), keeping_all():
        import_libraries(workspace.fast_lowering)
        import pipeline.run.perform  # noqa: F401


def perform_reported(
    action: Action, workspace: Workspace, stages: Stages, always: bool
) -> Report:
    """Perform an action with whatever it needs: new weights alone, this process, or one of its
    own."""
    from pipeline.run.isolated import ChildError  # which a no-op run does without

    try:
        if workspace.refit and not always:
            refitted = _refit(action, workspace, stages)
            if refitted is not None:
                return refitted
        with stages.stage(IMPORT), keeping_all():
            import_libraries(workspace.fast_lowering)
            from pipeline.run.perform import runs_user_code
        if runs_user_code(action):
            return perform_isolated(action, workspace, stages, always)
        return perform_here(action, workspace, stages, always)
    except ChildError as problem:  # whose traceback is in the log
        if problem.signal:  # so this worker's end tells more: it is tried again, alone
            os.kill(os.getpid(), problem.signal)
        return Report(make_event(action, "failed", error=str(problem)))
    except BaseException as problem:
        log_traceback(problem)
        return Report(make_event(action, "failed", error=describe_error(problem)))


def _refit(
    action: Action, workspace: Workspace, stages: Stages, here: bool = False
) -> Report | None:
    """Put new weights into what an action made before, if that is known to give what it makes; None
    where it is not.

    Imports no torch, unless a recipe needs it. `here`: in the process that builds.
    """
    if action.kind == "compile":
        import_numpy()
        is_refitted = any(
            call_all("instead_of_compile", action, workspace, stages, here)
        )
        return Report(make_event(action, "refit")) if is_refitted else None
    return _relink(action, workspace, stages, here) if action.kind == "link" else None


def _judge(action: Action, workspace: Workspace, stages: Stages) -> Report:
    """Judge what was measured of a package, and make its reports."""
    from pipeline.run.prove.validate import validate

    results: list[Mapping[str, Any]] = []
    try:
        validate(action, workspace, stages, results.append)
    except PipelineError as problem:
        if not results:
            raise  # a worker tries again, and has a log
        error = add_remedy(describe_error(problem), error=problem)
        with suppress(OSError):
            log_path(action, workspace).write_text(f"{error}\n")
        event = make_event(action, "failed", error=error)
        return Report(event, result=results[-1])
    return Report(make_event(action, "built"), result=results[-1])


def _relink(
    action: Action, workspace: Workspace, stages: Stages, here: bool
) -> Report | None:
    from pipeline.run.install import install

    if here:  # the package's folder is this process's to write, and spares it a copy
        deliver = partial(install, workspace, action)
        is_linked = any(call_all("instead_of_link", action, workspace, stages, deliver))
        return Report(make_event(action, "refit")) if is_linked else None
    results: list[Mapping[str, Any]] = []

    def collect(result: Mapping[str, Any], joined: Any) -> None:
        results.append(result)

    if not any(call_all("instead_of_link", action, workspace, stages, collect)):
        return None
    result = results[-1] if results else None
    return Report(make_event(action, "refit"), result=result)
