"""joblib's workers: the process pools on which its `Parallel` runs, imported without a trace.

joblib imports numpy and sets a variable. The process that builds needs no threads of numpy's, and
exporters that look at the whole environment would find it changed by how a run went.
"""

from __future__ import annotations

from pipeline.run.imports import leaving_environment

with leaving_environment():
    from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor
    from joblib.externals.loky.process_executor import ShutdownExecutorError

__all__ = ["BrokenProcessPool", "ProcessPoolExecutor", "ShutdownExecutorError"]
