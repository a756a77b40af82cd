"""Attaches a compiler's estimates of its delegates to results: cycles and memory, never measured.

A preprocess function returns an estimate with its result, in `_delegate_info_meta`, which
ExecuTorch passes to the lowered module and doesn't emit. This module must not know which compiler
made the estimate, nor who reads it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.store.compiled import Estimate as Estimate

if TYPE_CHECKING:
    from executorch.exir.backend.backend_details import PreprocessResult
    from executorch.exir.lowered_backend_module import LoweredBackendModule


def add_estimate(result: PreprocessResult, estimate: Estimate) -> PreprocessResult:
    """Return the result with an estimate of the delegate that it becomes."""
    return replace(result, _delegate_info_meta=estimate)


def find_estimate(delegate: LoweredBackendModule) -> Estimate | None:
    """Return the estimate of a delegate, or None if its backend made none."""
    meta: Any = delegate.meta or {}
    estimate = meta.get("_delegate_info_meta")
    return estimate if isinstance(estimate, Estimate) else None
