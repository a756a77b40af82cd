"""Delegate libraries: delegates that ExecuTorch's wheel lacks, from shared libraries that the
environment lists, so that this machine runs packages that call them."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "delegate_libraries",
    "run delegates that ExecuTorch's wheel lacks, from the libraries of PTE_DELEGATE_LIBRARIES",
    load_delegates="pipeline.features.delegate_libraries.loading:load_delegate_libraries",
)
