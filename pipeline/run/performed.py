"""Performs an action so that whatever comes of it is data: here, or in a process of its own.

An action that runs code of users gets a fork of this process, so that it changes nothing for the
next one.
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
    """How an action ended.

    Attributes:
        event: says so, its `error` is "" where it did not fail. A worker adds times and memory.
        usage: what the caches inside it were asked.
        remote: what was asked of the remote tier, and why it was given up or "".
        result: that of a kind that makes files, of a validation that failed too; they are not in
            the package's folder yet.
    """

    event: Event
    usage: Mapping[str, Usage] = MappingProxyType({})
    remote: tuple[Any, str] | None = None
    result: Mapping[str, Any] | None = None


def perform_here(
    action: Action, workspace: Workspace, stages: Stages, always: bool, keep: Any = None
) -> Report:
    """Perform an action in this process; `keep` is given what was compiled, instead of the
    store."""
    from pipeline.compile.preprocess.cache import counted_preprocess
    from pipeline.run.isolated import ChildError
    from pipeline.run.perform import perform
    from pipeline.store.remedies import explain_error

    results: list[Mapping[str, Any]] = [{}]
    try:
        with counted_preprocess() as counts:
            was_there = perform(action, workspace, stages, always, keep, results.append)
        spent = Usage(counts.hits, counts.misses, counts.saved, counts.spent)
        usage = {"preprocess": spent} if counts.hits or counts.misses else {}
        event = make_event(action, "hit" if was_there else "built")
        return Report(event, usage, result=results[-1] or None)
    except MissingBlobError as problem:
        log_traceback(problem)
        return Report(make_event(action, "lost", error=str(problem)))
    except ChildError as problem:  # whose traceback is in the log
        if (
            problem.signal == signal.SIGKILL
        ):  # as for lack of memory: tried again, alone
            os.kill(os.getpid(), signal.SIGKILL)
        return Report(make_event(action, "failed", error=str(problem)))
    except (
        BaseException
    ) as problem:  # SystemExit too: it would end the worker in silence
        log_traceback(problem)
        error = explain_error(problem, workspace.root)
        event = make_event(action, "failed", error=error)
        return Report(event, result=results[-1] or None)


def perform_isolated(
    action: Action, workspace: Workspace, stages: Stages, always: bool
) -> Report:
    """Perform an action in a fork of this process.

    Raises SourceError where passes read what the action's key does not hold, and ChildError where
    the fork dies.
    """
    from pipeline.run.isolated import run_isolated

    # Whatever else loads libraries of operators, a compile of the same ones is watched.
    is_watched = (
        action.kind == "compile" and {"passes", "operators"} & action.key.keys()
    )
    passes = None
    if is_watched:
        passes = next(call_all("watch_passes", action, workspace), None)
    watch = passes and passes.watch
    remote = workspace.store.remote
    remote_outcome = [] if remote is None else remote.outcome()
    if (
        remote_outcome and watch is not None
    ):  # or passes would seem to depend on the network
        remote_outcome[2] = True
    work = partial(_perform_in_fork, action, workspace, stages, always, remote_outcome)
    record = run_isolated(work, watch, stages)
    if remote is not None and watch is None:
        remote.join(*record["remote"])
    for result in record[
        "compiled"
    ]:  # not kept yet, since nobody knew what it depends on
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
    """Perform an action in this process, which is its own; return what happened as JSON.

    `remote_outcome` came of the remote tier before, in the process that this one is a fork of. What
    only the remote has is lost to one that doesn't ask it, and fetched before it runs again.
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
