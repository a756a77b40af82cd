"""Attach a compiler's estimates of its delegates to results: cycles and memory, never measured.

A preprocess function returns one with its result, in `_delegate_info_meta`, which ExecuTorch passes
to the lowered module and doesn't emit. This module must not know which compiler made it, nor who
reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executorch.exir.backend.backend_details import PreprocessResult
    from executorch.exir.lowered_backend_module import LoweredBackendModule


@dataclass(frozen=True)
class Estimate:
    """An estimate of one call of a delegate.

    Attributes:
        tool: what estimated it, as in "vela".
        clock: Hz, of the device that it was compiled for.
        cycles: of the whole call, waits for memory included.
        busy_cycles: of these, cycles in which the device computes.
        macs: multiply-accumulates.
        sram, dram, on_chip_flash, off_chip_flash: bytes in use at the peak, by kind of memory.
    """

    tool: str
    clock: int
    cycles: int
    busy_cycles: int
    macs: int
    sram: int
    dram: int
    on_chip_flash: int
    off_chip_flash: int


def add_estimate(result: PreprocessResult, estimate: Estimate) -> PreprocessResult:
    """Return the result with an estimate of the delegate that it becomes."""
    return replace(result, _delegate_info_meta=estimate)


def find_estimate(delegate: LoweredBackendModule) -> Estimate | None:
    """Return the estimate of a delegate; None if its backend made none."""
    meta: Any = delegate.meta or {}
    estimate = meta.get("_delegate_info_meta")
    return estimate if isinstance(estimate, Estimate) else None
