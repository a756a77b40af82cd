"""Imports torch and numpy without the start-up work that pte-pipeline doesn't need."""

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


@contextmanager
def keeping_all() -> Iterator[None]:
    """Disable garbage collection during imports, and exempt the imported objects from it for good.

    Imports leave hardly any garbage, and searching for it takes a seventh of their time.
    """
    gc.disable()
    try:
        with locating_modules():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def locating_modules() -> Iterator[None]:
    """Within the context, tell torch where operators are registered without searching all modules.

    Otherwise a tenth of the time of its import goes into that, and half of that of some modules
    which it imports later.
    """
    with (
        replaced(inspect, "getframeinfo", _without_lines),
        replaced(inspect, "getmodule", _by_name),
    ):
        yield


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
    """Import numpy without BLAS threads, and restore the environment.

    Each of the threads would spin for some 0.1 s before it sleeps.
    """
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        if before is None:
            del os.environ[_BLAS_THREADS]
        else:
            os.environ[_BLAS_THREADS] = before
