"""The process of a worker: its threads, its garbage, and the caches that it must empty."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from pipeline.moments import call_all
from pipeline.run.isolated import ForkWatch
from pipeline.run.stages import held_memory, reset_peak
from pipeline.store.scratch import empty_folder

_LARGE = 4 << 30  # bytes of resident memory from which on all objects are collected
# As `gc.set_threshold` takes them; Python's are 700, 10, 10.
_SELDOM = (
    100_000,
    4,
    100,
)
# Caches without a bound, which keep each program that was lowered, with its weights.
_CACHES = (
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("executorch.exir.backend.utils", "is_same_node"),
    ("torchao.quantization.pt2e.export_utils", "_assert_and_get_unique_device"),
)


@contextmanager
def worker_process(seldom: bool) -> Iterator[None]:
    """Prepare a worker process for an action, during which it collects garbage as usual or seldom.

    As usual that costs 11 to 20 % of lowering, most of whose objects live to its end; seldom it
    costs 1 to 3 %, and memory of graphs that passes are done with is used again. Validation makes
    modules and packages for each method, and is done with them one after another. Afterwards only
    what the action made is looked at: torch's own 400,000 objects stay frozen, unless the process
    has grown so large that something may hide among them.
    """
    if ForkWatch.scratch:  # which whoever tidies /tmp may have removed
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
        gc.set_threshold(*usual)
        if held_memory("VmRSS") > _LARGE:
            gc.unfreeze()
        gc.collect()
        return_free_memory()


def return_free_memory() -> None:
    """Give the system the pages in which nothing is allocated any more, where the C library can
    (glibc). By itself it keeps those below any in use: half of what a large model took."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def forget_programs() -> None:
    """Empty the caches that keep programs which were lowered."""
    for module, name in _CACHES:
        if module in sys.modules:
            getattr(sys.modules[module], name).cache_clear()


def import_libraries(fast_lowering: bool) -> None:
    """Import torch, set up as actions need it, and where lowering is to be fast ExecuTorch, if a
    feature does so in less time than whoever needs it would."""
    _set_up_torch()
    if fast_lowering:
        for _ in call_all("import_executorch"):
            pass


@cache
def _set_up_torch() -> None:
    """Compute on one thread in this process, so that results depend neither on the number of
    workers nor on that of cores."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.set_default_device(None)  # whatever a plugin did when it was imported
    torch.set_default_dtype(torch.float32)
