"""Lowering from Python, on the compile path of this package.

`to_backend` takes the place of ExecuTorch's function, and `to_backend_multiple` lowers the methods
of a model, each with its own partitioners.
"""

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
