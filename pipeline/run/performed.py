"""Performs an action, in this process or a fork, and returns any outcome as data.

An action that runs user code gets a fork, so that it can't affect the next action.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.report.events import Event, make_event
from pipeline.run.stages import Stages
from pipeline.store.errors import log_traceback
from pipeline.store.store import MissingBlobError
from pipeline.store.usage import Usage
from pipeline.store.workspace import Workspace


class Report(NamedTuple):
    """The outcome of an action.

    Attributes:
        event: the outcome, with an empty `error` unless it failed. A worker adds times and memory.
        usage: hits and misses of the caches used within the action.
        remote: the requests made to the remote tier, and why it was given up, or "".
        result: the result of a kind that makes files, also of a failed validation; the files are
            not in the package's folder yet.
    """

    event: Event
    usage: Mapping[str, Usage] = MappingProxyType({})
    remote: tuple[Any, str] | None = None
    result: Mapping[str, Any] | None = None


def perform_here(
    action: Action, workspace: Workspace, stages: Stages, always: bool, keep: Any = None
) -> Report:
    """Perform an action in this process; `keep` receives a compile result in place of the store."""
    from pipeline.compile.preprocess.cache import counted_preprocess
    from pipeline.run.isolated import ChildError
    from pipeline.run.perform import perform
    from pipeline.run.worker_process import call_with_room
    from pipeline.store.remedies import explain_error

    results: list[Mapping[str, Any]] = [{}]
    try:
        with counted_preprocess() as counts:
            was_there = call_with_room(
                perform, action, workspace, stages, always, keep, results.append
            )
        spent = Usage(counts.hits, counts.misses, counts.saved, counts.spent)
        usage = {"preprocess": spent} if counts.hits or counts.misses else {}
        event = make_event(action, "hit" if was_there else "built")
        return Report(event, usage, result=results[-1] or None)
    except MissingBlobError as problem:
        log_traceback(problem)
        return Report(make_event(action, "lost", error=str(problem)))
    except ChildError as problem:  # its traceback is in the log
        # Probably out of memory: die likewise, to be retried alone.
        if problem.signal == signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)
        return Report(make_event(action, "failed", error=str(problem)))
    # Includes SystemExit, which would end the worker silently.
    except BaseException as problem:
        log_traceback(problem)
        error = explain_error(problem, workspace.root)
        event = make_event(action, "failed", error=error)
        return Report(event, result=results[-1] or None)


def perform_isolated(
    action: Action, workspace: Workspace, stages: Stages, always: bool
) -> Report:
    """Perform an action in a fork of this process.

    Raises SourceError if passes read inputs that the action's key does not include, and ChildError
    if the fork dies.
    """
    from pipeline.run.isolated import run_isolated

    # Only compilations are watched; other actions load libraries that a compilation loads too.
    is_watched = (
        action.kind == "compile" and {"passes", "operators"} & action.key.keys()
    )
    watching = call_all("watch_passes", action, workspace)
    passes = next(watching, None) if is_watched else None
    watch = passes and passes.watch
    remote = workspace.store.remote
    remote_outcome = [] if remote is None else remote.outcome()
    # Otherwise passes would seem to depend on the network.
    if remote_outcome and watch is not None:
        remote_outcome[2] = True
    work = partial(_perform_in_fork, action, workspace, stages, always, remote_outcome)
    record = run_isolated(work, watch, stages)
    if remote is not None and watch is None:
        remote.join(*record["remote"])
    # Stored only now that their inputs are known.
    for result in record["compiled"]:
        if passes is not None:
            passes.check()
        workspace.store.put_result(*result)
    usage = {kind: Usage(**counts) for kind, counts in record["usage"].items()}
    event = make_event(action, record["outcome"], error=record["error"])
    return Report(event, usage, result=record["result"])


def _perform_in_fork(
    action: Action,
    workspace: Workspace,
    stages: Stages,
    always: bool,
    remote_outcome: list[Any],
) -> dict[str, Any]:
    """Perform an action in this process, a fork made for it; return the outcome as JSON.

    `remote_outcome` is the state of the remote tier in the parent process. If the fork may not ask
    the remote, a blob that only the remote has counts as lost, and is fetched before the next try.
    """
    remote = workspace.store.remote
    if remote_outcome and remote is not None:
        remote.join({}, *remote_outcome[1:])
    compiled: list[Any] = []

    def keep(*result: Any) -> None:
        compiled.append(result)

    report = perform_here(action, workspace, stages, always, keep)
    return {
        "outcome": report.event.outcome,
        "error": report.event.error,
        "usage": {kind: vars(usage) for kind, usage in report.usage.items()},
        "remote": [] if remote is None else remote.outcome(),
        "result": report.result,
        "compiled": compiled,
    }
