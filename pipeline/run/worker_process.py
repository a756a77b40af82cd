"""The process of a worker: its threads, its garbage collection, and the caches it must empty."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.moments import call_all
from pipeline.run.isolated import ForkWatch
from pipeline.run.stages import held_memory, reset_peak
from pipeline.store.scratch import empty_folder

_LARGE = 4 << 30  # bytes of resident memory above which all objects are collected
# Arguments of `gc.set_threshold`; Python's defaults are 700, 10, 10.
_SELDOM = (200_000, 4, 100)
# Unbounded caches, which keep every lowered program alive together with its weights.
_CACHES = (
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("executorch.exir.backend.utils", "is_same_node"),
    ("torchao.quantization.pt2e.export_utils", "_assert_and_get_unique_device"),
)


@contextmanager
def worker_process(seldom: bool) -> Iterator[None]:
    """Prepare a worker process for an action, and clean up after it.

    The cleanup collects only objects that the action made. torch's own 400,000 objects stay frozen,
    unless the process has grown so large that there may be garbage among them.

    Args:
        seldom: collect garbage seldom during the action. At Python's default rate, collections take
            11 to 20 % of lowering, most of whose objects live until its end. At the lower rate they
            take 1 to 3 %, and the memory of graphs that passes have discarded is still reused.
            Validation keeps the default rate, since it makes modules and packages for each method
            and discards them one after another.
    """
    if ForkWatch.scratch:  # /tmp may have been cleaned up
        Path(ForkWatch.scratch).mkdir(mode=0o700, parents=True, exist_ok=True)
    gc.freeze()
    usual = gc.get_threshold()
    if seldom:
        gc.set_threshold(*_SELDOM)
    reset_peak()
    try:
        yield
    finally:
        if ForkWatch.scratch:
            empty_folder(Path(ForkWatch.scratch))
        forget_programs()
        if held_memory("VmRSS") > _LARGE:
            gc.unfreeze()
        gc.collect()
        gc.set_threshold(*usual)  # last, or the next object would start a collection
        return_free_memory()


def call_with_room(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with memory for the frames of all further calls.

    Python (3.11 to 3.13) keeps frames in chunks of 16 KiB. A loop whose calls begin a new chunk
    maps memory at each call and frees it again, which takes 300 times as long as the call. The
    frame of this function is so large that it gets a chunk of 2 MiB, and half of that is left.
    """
    return function(*arguments)


call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=131_072)


def return_free_memory() -> None:
    """Return unused pages to the system, if the C library (glibc) supports it.

    By itself, glibc keeps free pages below any page in use: half of a large model's memory.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_programs() -> None:
    """Empty the caches that keep lowered programs."""
    for module, name in _CACHES:
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()


def import_libraries(fast_lowering: bool) -> None:
    """Import torch and configure it for actions.

    With `fast_lowering`, also import ExecuTorch if a feature can do that faster than a plain
    import.
    """
    if fast_lowering:
        for _ in call_all("import_executorch", _set_up_torch):
            pass
    _set_up_torch()


@cache
def _set_up_torch() -> None:
    """Make torch use one thread, so that results don't depend on the number of workers or cores."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.set_default_device(None)  # a plugin may have changed it on import
    torch.set_default_dtype(torch.float32)
