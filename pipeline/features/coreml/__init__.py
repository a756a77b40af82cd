"""Core ML: the neural engine, GPU and CPU of Apple's devices."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "coreml",
    "lower to Core ML, for Apple devices",
    entries="pipeline.features.coreml.entries",
)
