"""Lowering from Python: ExecuTorch's `to_backend` on the compile path of this package, and
`to_backend_multiple` for the methods of a model, each with partitioners of its own."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "to_backend",
    "lower edge programs from Python with pte_pipeline.to_backend and to_backend_multiple",
    public=(
        "pipeline.features.to_backend.registration",
        "pipeline.features.to_backend.to_backend",
        "pipeline.features.to_backend.to_backend_multiple",
    ),
)
