"""MPS and MLX: backends for the GPUs of Apple's machines."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "apple",
    "lower to MPS and MLX, for the GPUs of Apple's machines",
    entries="pipeline.features.apple.entries",
)
