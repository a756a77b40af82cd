"""Cortex-M, and why nothing is lowered to Cadence: kernels instead of delegates."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "cortex_m",
    "lower to Cortex-M kernels",
    entries="pipeline.features.cortex_m.entries",
)
