"""The executor that the settings name; each is imported only when it is."""

from __future__ import annotations

from pipeline.run.executors import Executor, ExecutorLostError
from pipeline.store.workspace import Workspace


def open_executor(workspace: Workspace, jobs: int, always: bool) -> Executor:
    """Open the workspace's executor. Raises ExecutorLostError."""
    if not workspace.executor:
        from pipeline.run.executors.local import LocalExecutor

        return LocalExecutor(workspace, jobs, always)
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        remedy = "pip install 'pte-pipeline[dask]'"
        raise ExecutorLostError(f"executor {workspace.executor} needs dask: {remedy}") from error
    from pipeline.run.executors.cluster.executor import ClusterExecutor

    return ClusterExecutor(workspace, jobs, always, workspace.executor)
