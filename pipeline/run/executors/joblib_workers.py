"""Imports the process pools behind joblib's `Parallel`, without side effects.

joblib imports numpy and sets an environment variable. The process that builds doesn't need numpy's
threads, and the variable would be a change to exporters that depend on the whole environment.
"""

from __future__ import annotations

from pipeline.run.imports import leaving_environment

with leaving_environment():
    from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor
    from joblib.externals.loky.process_executor import ShutdownExecutorError

__all__ = ["BrokenProcessPool", "ProcessPoolExecutor", "ShutdownExecutorError"]
