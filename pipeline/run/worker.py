"""Runs an action in a worker, with a log, timed stages and a report.

A worker returns a result or an error as data and never raises: executors then need not transport
exceptions, whose contents might not unpickle.
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
    """Perform a requested action and write all its output to its log.

    Args:
        request: from `plan.requests.write_request`.
        always: perform it even if the store has the result.
    """
    names = read_names(request)
    if (remote := workspace.store.remote) is not None:
        remote.counts = type(remote.counts)()  # counts for this action only

    def perform(stages: Stages) -> Report:
        try:
            log = log_path(names, workspace)
            make_folder(log.parent, workspace.build)
            with worker_process(seldom=names.kind != "validate"), logging_to(log):
                action = read_request(request, workspace)
                return perform_reported(action, workspace, stages, always)
        # A config error: this process can't parse the config.
        except PipelineError as problem:
            return Report(make_event(names, "failed", error=str(problem)))
        except OSError as problem:
            error = add_remedy(describe_error(problem), error=problem)
            return Report(make_event(names, "failed", error=error))

    was_filled = workspace.store.is_filled()
    report = _report(names, workspace, perform)
    if report and report.event.error and workspace.store.is_filled() > was_filled:
        # The store's disk filled up during the action; results now go to the overflow.
        report = _report(names, workspace, perform)
    assert report is not None
    if remote is None:
        return report
    return report._replace(remote=(remote.counts, remote.problem))


def may_refit_here(action: Action, workspace: Workspace) -> bool:
    """Return whether new weights may be put into the result of an action of this kind."""
    return workspace.refit and action.kind in ("compile", "link")


def may_judge_here(action: Action, workspace: Workspace) -> bool:
    """Return whether an action only has to judge a package that was measured before."""
    if not isinstance(action.inputs, ValidateInputs):
        return False
    from pipeline.run.prove.measured import is_measured

    return is_measured(action, workspace)


def run_here(
    action: Action, workspace: Workspace, begins: Callable[[], None]
) -> Report | None:
    """Perform an action in the process that builds, without torch, or return None if a worker must.

    This works if new weights can be put into an earlier result, or if the package was measured
    before and only has to be judged. If it fails for any reason, a worker performs the action and
    reports. `begins` is called when there is work to do, and whenever the stage advances.
    """

    def note(stage: str, steps_done: int, total: int) -> None:
        if stage != "load":  # this stage finds out whether there is work to do
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
    """Call `perform` and complete its report with times, stages and memory; pass on None.

    `note` is called like the callback of `Stages`.
    """
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
    # Stages and steps with begin and end, in seconds since the action started.
    spans = [
        (name, begin - started, end - started)
        for name, begin, end in [*stages.spans, *stages.steps]
    ]
    event = report.event._replace(
        start=clock,
        seconds=time.perf_counter() - started,
        stages=spans,
        stage=stages.current,
        worker=os.getpid(),
        peak_bytes=stages.peak,
        log=log_name(action, workspace) if report.event.error else "",
    )
    return report._replace(event=event)


def import_ahead(workspace: Workspace) -> None:
    """Import the libraries that actions need before the first one arrives.

    An error is ignored here; it will recur in the log of an action.
    """
    with suppress(Exception), logging_to(workspace.logs / "imports.log"), keeping_all():
        import_libraries(workspace.fast_lowering)
        import pipeline.run.perform  # noqa: F401


def perform_reported(
    action: Action, workspace: Workspace, stages: Stages, always: bool
) -> Report:
    """Perform an action in the cheapest way: by new weights, in this process, or in a fork."""
    from pipeline.run.isolated import ChildError  # not imported by a no-op run

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
    except ChildError as problem:  # its traceback is in the log
        if problem.signal:  # die of the same signal: the action is then retried alone
            os.kill(os.getpid(), problem.signal)
        return Report(make_event(action, "failed", error=str(problem)))
    except BaseException as problem:
        log_traceback(problem)
        return Report(make_event(action, "failed", error=describe_error(problem)))


def _refit(
    action: Action, workspace: Workspace, stages: Stages, here: bool = False
) -> Report | None:
    """Put new weights into an earlier result of the action, if that is known to be equivalent.

    Returns None if it is not, so that the action has to be performed. Imports torch only if a
    recipe needs it. `here` is true in the process that builds.
    """
    if action.kind == "compile":
        import_numpy()
        is_refitted = any(
            call_all("instead_of_compile", action, workspace, stages, here)
        )
        return Report(make_event(action, "refit")) if is_refitted else None
    return _relink(action, workspace, stages, here) if action.kind == "link" else None


def _judge(action: Action, workspace: Workspace, stages: Stages) -> Report:
    """Judge a package by its earlier measurement, and write its reports."""
    from pipeline.run.prove.validate import validate

    results: list[Mapping[str, Any]] = []
    try:
        validate(action, workspace, stages, results.append)
    except PipelineError as problem:
        if not results:
            raise  # a worker, which has a log, tries again
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

    if here:  # this process owns the package's folder: install directly, without a copy
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
