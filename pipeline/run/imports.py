"""Imports torch, numpy and joblib without what this package has no use for."""

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
    """Import within the context without looking for garbage, of which there is hardly any, and
    never look through what was imported: it takes a seventh of the time. torch asks from where each
    operator is registered, and is told without a look at the files of all modules: a tenth more."""
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
    """Leave out the lines around a frame, unless they are asked for."""
    return lambda frame, context=0: original(frame, context)


def _by_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """Find the module of a frame by its name, where that module has the frame's variables."""

    def find(subject: Any, file: str | None = None) -> Any:
        if inspect.isframe(subject):
            module = sys.modules.get(subject.f_globals.get("__name__", ""))
            if module is not None and vars(module) is subject.f_globals:
                return module
        return original(subject, file)

    return find


def import_numpy() -> None:
    """Import numpy as `leaving_environment` does."""
    with leaving_environment():
        import numpy  # noqa: F401


@contextmanager
def leaving_environment() -> Iterator[None]:
    """Import numpy, or joblib, within the context: without the threads of linear algebra, which the
    process that builds has no use for (each waits busily for some 0.1 s before it sleeps), and with
    the variables as before."""
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
