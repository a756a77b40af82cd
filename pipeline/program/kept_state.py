"""The state of this process that user code may change, kept as it was around each call of it.

A pass that sets torch's default dtype would change every method that is lowered after it. What can
be put back is put back; what lasts (a kernel of an operator that was there before) is refused.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar

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


class _Part(NamedTuple):
    """One part of the state: its name, and how it is read and written."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _read_device() -> torch.device | None:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _flushes_denormals() -> bool:
    return sys.float_info.min / 10 == 0  # computed as torch computes, and under any mode of torch's


def _write_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def _write_path(before: list[str]) -> None:
    sys.path[:] = before


def _read_decompositions() -> dict[str, dict[Any, Any]]:
    return {kind: dict(table) for kind, table in global_decomposition_table.items()}


def _write_decompositions(before: dict[str, dict[Any, Any]]) -> None:
    for kind, table in global_decomposition_table.items():
        table.clear()
        table.update(before[kind])


_PARTS = (
    _Part("the default device", _read_device, torch.set_default_device),
    _Part("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Part("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _Part("whether gradients are computed", torch.is_grad_enabled, torch._C._set_grad_enabled),
    _Part(
        "which algorithms are deterministic",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    _Part(
        "the precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    _Part("whether denormals are flushed", _flushes_denormals, torch.set_flush_denormal),
    _Part("whether oneDNN is used", torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    _Part("whether NNPACK is used", torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled),
    _Part(
        "autocast",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda value: torch.set_autocast_enabled("cpu", value),
    ),
    _Part("decompositions", _read_decompositions, _write_decompositions),
    _Part("the environment", lambda: dict(os.environ), _write_environment),
    _Part("the working folder", os.getcwd, os.chdir),
    _Part("sys.path", lambda: list(sys.path), _write_path),
)
_SEEDS = (
    _Part("torch's seed", torch.get_rng_state, torch.set_rng_state),
    _Part("numpy's seed", np.random.get_state, np.random.set_state),
    _Part("random's seed", random.getstate, random.setstate),
)


@contextmanager
def kept_state(who: str) -> Iterator[None]:
    """Put back, afterwards, what `who` changes of torch's defaults, of seeds and of this process.

    Raises PipelineError where it gave an operator that was there before another kernel, or left a
    mode of torch's switched on.
    """
    before = [part.read() for part in _PARTS]
    with _disable_current_modes():
        seeds = [part.read() for part in _SEEDS]
    kernels, operators, modes = set(torch.library._impls), set(torch.library._defs), _modes()
    try:
        yield
    finally:
        with _disable_current_modes():
            for part, value in zip(_SEEDS, seeds, strict=True):
                part.write(value)
        changed = []
        for part, value in zip(_PARTS, before, strict=True):
            if part.read() != value:
                part.write(value)
                changed.append(part.name)
        if changed:
            _log.warning("%s changed %s, which is put back", who, listed(changed))
    made = sorted(k for k in set(torch.library._impls) - kernels if _is_of(k, operators))
    if made:
        raise PipelineError(
            f"{who}: gives {listed(made, 3)} another kernel, for all that is lowered after it; "
            "give it an operator of its own"
        )
    if _modes() != modes:
        raise PipelineError(f"{who}: leaves a mode of torch's on; leave it as a context manager")


def _is_of(kernel: str, operators: set[str]) -> bool:
    """Return whether a kernel, as `aten/add.Tensor/CPU`, is one of ATen or of these operators."""
    namespace, name, _ = kernel.split("/")
    return namespace == "aten" or f"{namespace}::{name}" in operators


def _modes() -> list[type]:
    stacks = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    return [type(mode) for mode in stacks]


def keep_state(function: Callable[..., _T], who: str) -> Callable[..., _T]:
    """Return a function that keeps the state as it was."""

    @wraps(getattr(function, "func", function))  # of a partial, which has no name
    def wrapped(*args: Any, **options: Any) -> _T:
        with kept_state(who):
            return function(*args, **options)

    return wrapped


def keep_state_in(made: _T, methods: Iterable[str], who: str) -> _T:
    """Make methods of an object keep the state as it was. It stays of its class."""
    kind: Any = type(made)
    own = {n: keep_state(getattr(kind, n), who) for n in methods if hasattr(kind, n)}
    facts = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    object.__setattr__(made, "__class__", type(kind.__name__, (kind,), {**facts, **own}))
    return made
