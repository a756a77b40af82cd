"""Opens the executor that the settings name, and imports no other."""

from __future__ import annotations

from pipeline.moments import find_functions, load
from pipeline.run.executors import Executor
from pipeline.store.workspace import Workspace


def open_executor(workspace: Workspace, jobs: int, always: bool) -> Executor:
    """Open the workspace's executor, either the local one or that of a feature.

    Raises ExecutorLostError.
    """
    if not workspace.executor:
        from pipeline.run.executors.local import LocalExecutor

        return LocalExecutor(workspace, jobs, always)
    name = workspace.executor.partition("://")[0]
    executor: Executor = load(find_functions("executors")[name])(
        workspace, jobs, always, workspace.executor
    )
    return executor
