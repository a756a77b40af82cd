"""Imports joblib's processes (its copy of loky) without the rest of joblib.

joblib itself imports numpy and asyncio. That takes 0.13 CPU s in each process of a build: the one
that builds, its workers, and the tracker that loky starts to clean up after them. This module is
also the program that workers run, and gives the tracker its `main`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

_PACKAGE = "joblib"
_WORKER = f"{_PACKAGE}.externals.loky.backend.popen_loky_posix"
_EXECUTOR = f"{_PACKAGE}.externals.loky.process_executor"
_WATCH = "psutil"
# What importing joblib itself sets, for libraries of Intel in workers that fork.
_ENVIRONMENT = ("KMP_INIT_AT_FORK", "FALSE")
# Names with underscores that joblib defines, unlike those that are asked of any module.
_DEFINED = ("__all__", "__version__")


class _LatePackage(ModuleType):
    """joblib, whose code runs once a name is used that isn't an imported module of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _DEFINED:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        try:
            self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        except BaseException:
            del sys.modules[_PACKAGE]
            raise
        return getattr(self, name)


def import_joblib_late() -> None:
    """Let `import joblib.externals.loky` import no other module of joblib."""
    if _PACKAGE in sys.modules or (spec := importlib.util.find_spec(_PACKAGE)) is None:
        return
    package = _LatePackage(_PACKAGE)
    package.__spec__, package.__loader__ = spec, spec.loader
    package.__file__, package.__package__ = spec.origin, _PACKAGE
    package.__path__ = spec.submodule_search_locations  # type: ignore[assignment]
    sys.modules[_PACKAGE] = package


def import_executor() -> None:
    """Import loky's executor without its watch over the memory of workers.

    The watch needs psutil, if that is installed, to replace workers that have grown by 300 MB since
    their first task; otherwise it collects garbage after each task. Actions of a build need such
    amounts, and after each a worker collects garbage and returns memory itself.
    """
    loaded = sys.modules.get(_WATCH)
    sys.modules[_WATCH] = None  # type: ignore[assignment]
    try:
        executor: Any = importlib.import_module(_EXECUTOR)
    finally:
        del sys.modules[_WATCH]
        if loaded is not None:
            sys.modules[_WATCH] = loaded
    executor._USE_PSUTIL = False
    executor.gc = SimpleNamespace(collect=lambda: 0)


def main(*arguments: Any) -> None:
    """Run loky's tracker of resources."""
    run_tracker(*arguments)


import_joblib_late()
import_executor()

if __name__ == "__main__":
    os.environ.setdefault(*_ENVIRONMENT)
    runpy.run_module(_WORKER, run_name="__main__", alter_sys=True)  # which exits

from joblib.externals.loky import BrokenProcessPool, ProcessPoolExecutor
from joblib.externals.loky.backend.popen_loky_posix import Popen
from joblib.externals.loky.backend.resource_tracker import main as run_tracker
from joblib.externals.loky.process_executor import ShutdownExecutorError

# loky's commands name the modules of these.
Popen.__module__ = run_tracker.__module__ = __name__

__all__ = ["BrokenProcessPool", "ProcessPoolExecutor", "ShutdownExecutorError"]
