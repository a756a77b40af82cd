"""Warnings about a lowering that succeeds: what a method will do wrong, or where it won't run.

Warnings are stored with the compiled method, so that a build that gets the method from the store
repeats them.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "lowering_warnings",
    "warn about operators in training mode, and about quantized methods that no delegate runs",
    warn_of_program="pipeline.features.lowering_warnings.warnings:find_training_mode",
    warn_of_quantization="pipeline.features.lowering_warnings.warnings:warn_of_quantization",
)
