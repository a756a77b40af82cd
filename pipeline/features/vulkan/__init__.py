"""Vulkan and WebGPU: GPUs of phones and browsers."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "vulkan",
    "lower to Vulkan and WebGPU",
    entries="pipeline.features.vulkan.entries",
)
