"""Finds a compiler's estimates of its delegates: cycles and memory, never measured.

A preprocess function returns an estimate with its result, in `_delegate_info_meta`, which
ExecuTorch passes to the lowered module and doesn't emit. This module must not know which compiler
made the estimate, nor who reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.store.compiled import Estimate as Estimate

if TYPE_CHECKING:
    from executorch.exir.lowered_backend_module import LoweredBackendModule


def find_estimate(delegate: LoweredBackendModule) -> Estimate | None:
    """Return the estimate of a delegate, or None if its backend made none."""
    meta: Any = delegate.meta or {}
    estimate = meta.get("_delegate_info_meta")
    return estimate if isinstance(estimate, Estimate) else None
