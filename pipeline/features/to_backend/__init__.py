"""`to_backend`: ExecuTorch's function of this name on the compile path of this package."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "to_backend",
    "lower single edge programs and whole sub-modules from Python by pte_pipeline.to_backend",
    public=("pipeline.features.to_backend.to_backend",),
)
