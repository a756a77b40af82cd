"""Imports torch, numpy and joblib without the start-up work that this package doesn't need."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.program.patching import replaced

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_SET_BY_JOBLIB = "KMP_INIT_AT_FORK"


@contextmanager
def keeping_all() -> Iterator[None]:
    """Disable garbage collection during imports, and exempt the imported objects from it for good.

    Imports leave hardly any garbage, and searching for it takes a seventh of their time. A further
    tenth goes into torch asking where each operator is registered; within the context the answer
    comes without scanning the files of all modules.
    """
    gc.disable()
    try:
        with (
            replaced(inspect, "getframeinfo", _without_lines),
            replaced(inspect, "getmodule", _by_name),
        ):
            yield
    finally:
        gc.freeze()
        gc.enable()


def _without_lines(original: Callable[..., Any]) -> Callable[..., Any]:
    """Omit the source lines around a frame unless the caller asks for them."""
    return lambda frame, context=0: original(frame, context)


def _by_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """Look up a frame's module by name if that module's globals are the frame's."""

    def find(subject: Any, file: str | None = None) -> Any:
        if inspect.isframe(subject):
            module = sys.modules.get(subject.f_globals.get("__name__", ""))
            if module is not None and vars(module) is subject.f_globals:
                return module
        return original(subject, file)

    return find


def import_numpy() -> None:
    """Import numpy within `leaving_environment`."""
    with leaving_environment():
        import numpy  # noqa: F401


@contextmanager
def leaving_environment() -> Iterator[None]:
    """Import numpy or joblib within the context without BLAS threads, and restore the environment.

    The process that builds doesn't use those threads, each of which spins for some 0.1 s before it
    sleeps. Environment variables that the imports set are reset afterwards.
    """
    before = {name: os.environ.get(name) for name in (_BLAS_THREADS, _SET_BY_JOBLIB)}
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
