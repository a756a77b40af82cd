"""Opens the executor of a cluster, if dask is installed."""

from __future__ import annotations

from pipeline.run.executors import Executor, ExecutorLostError
from pipeline.store.workspace import Workspace


def open_cluster(workspace: Workspace, jobs: int, always: bool, where: str) -> Executor:
    """Open the executor for a scheduler, or for a cluster that it starts on this machine.

    Raises ExecutorLostError.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        remedy = "pip install 'pte-pipeline[dask]'"
        raise ExecutorLostError(f"executor {where} needs dask: {remedy}") from error
    from pipeline.features.cluster.executor import ClusterExecutor

    return ClusterExecutor(workspace, jobs, always, where)
