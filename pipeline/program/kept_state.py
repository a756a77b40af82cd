"""Restores the process state that a call of user code may change.

Otherwise a pass that sets torch's default dtype would affect every method lowered after it. Most
changes are undone; one that can't be, such as a new kernel for an existing operator, is an error.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch._decomp import global_decomposition_table
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from pipeline.store.errors import PipelineError, listed

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Parts = tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...]


def _read_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if context is None:
        return None
    return context.device


def _flushes_denormals() -> bool:
    # This division obeys the same CPU setting as torch's, but torch's modes can't intercept it.
    return sys.float_info.min / 10 == 0


def _write_environment(environment: dict[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)


def _write_path(path: list[str]) -> None:
    sys.path[:] = path


def _read_decompositions() -> dict[str, dict[Any, Any]]:
    return {kind: dict(table) for kind, table in global_decomposition_table.items()}


def _write_decompositions(tables: dict[str, dict[Any, Any]]) -> None:
    for kind, table in global_decomposition_table.items():
        table.clear()
        table.update(tables[kind])


# The parts of the state: the name of each, and the functions that read and write it.
_PARTS: _Parts = (
    ("the default device", _read_device, torch.set_default_device),
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the number of threads", torch.get_num_threads, torch.set_num_threads),
    (
        "whether gradients are computed",
        torch.is_grad_enabled,
        torch._C._set_grad_enabled,
    ),
    (
        "which algorithms are deterministic",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    (
        "the precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    ("whether denormals are flushed", _flushes_denormals, torch.set_flush_denormal),
    (
        "whether oneDNN is used",
        torch._C._get_mkldnn_enabled,
        torch._C._set_mkldnn_enabled,
    ),
    (
        "whether NNPACK is used",
        torch._C._get_nnpack_enabled,
        torch._C._set_nnpack_enabled,
    ),
    (
        "autocast",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda value: torch.set_autocast_enabled("cpu", value),
    ),
    ("decompositions", _read_decompositions, _write_decompositions),
    ("the environment", lambda: dict(os.environ), _write_environment),
    ("the working folder", os.getcwd, os.chdir),
    ("sys.path", lambda: list(sys.path), _write_path),
)
_SEEDS: _Parts = (
    ("torch's seed", torch.get_rng_state, torch.set_rng_state),
    ("numpy's seed", np.random.get_state, np.random.set_state),
    ("random's seed", random.getstate, random.setstate),
)


@contextmanager
def kept_state(who: str) -> Iterator[None]:
    """Restore torch's defaults, seeds and process state when the context ends.

    Args:
        who: the name of the code that runs within the context, for messages.

    Raises:
        PipelineError: the code gave an existing operator another kernel, or left a torch mode on.
    """
    values = [read() for _, read, _ in _PARTS]
    with _disable_current_modes():  # a mode would intercept reading and writing seeds
        seeds = [read() for _, read, _ in _SEEDS]
    kernels = set(torch.library._impls)
    operators = set(torch.library._defs)
    modes = _modes()
    try:
        yield
    finally:
        with _disable_current_modes():
            for (_, _, write), seed in zip(_SEEDS, seeds, strict=True):
                write(seed)
        changed = _restore(values)
        if changed:
            _log.warning("%s changed %s, which is put back", who, listed(changed))
    new_kernels = sorted(set(torch.library._impls) - kernels)
    overrides = [kernel for kernel in new_kernels if _is_of(kernel, operators)]
    if overrides:
        raise PipelineError(
            f"{who}: gives {listed(overrides, 3)} another kernel, which affects everything that "
            "is lowered later; register an operator of its own"
        )
    if _modes() != modes:
        raise PipelineError(
            f"{who}: leaves a torch mode enabled; use it as a context manager"
        )


def _restore(values: list[Any]) -> list[str]:
    """Write back the values of the parts that have changed, and return the names of these parts."""
    changed = []
    for (name, read, write), value in zip(_PARTS, values, strict=True):
        if read() != value:
            write(value)
            changed.append(name)
    return changed


def _is_of(kernel: str, operators: set[str]) -> bool:
    """Return whether a kernel such as `aten/add.Tensor/CPU` is for ATen or for these operators."""
    namespace, name, _ = kernel.split("/")
    return namespace == "aten" or f"{namespace}::{name}" in operators


def _modes() -> list[type]:
    stacks = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    return [type(mode) for mode in stacks]


def keep_state(function: Callable[..., _T], who: str) -> Callable[..., _T]:
    """Return a wrapper of a function that restores the state after each call."""

    @wraps(getattr(function, "func", function))  # a partial has no name
    def wrapped(*args: Any, **options: Any) -> _T:
        with kept_state(who):
            return function(*args, **options)

    return wrapped


def keep_state_in(instance: _T, methods: Iterable[str], who: str) -> _T:
    """Make methods of an object restore the state; it remains an instance of its class."""
    base: Any = type(instance)
    attributes = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__slots__": (),
    }
    for name in methods:
        if hasattr(base, name):
            attributes[name] = keep_state(getattr(base, name), who)
    # Python looks up `__call__` on the class, so wrapping methods on the instance isn't enough.
    # `object.__setattr__` also works on frozen dataclasses.
    subclass = type(base.__name__, (base,), attributes)
    object.__setattr__(instance, "__class__", subclass)
    return instance
