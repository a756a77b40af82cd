"""Training mode: operators that a model was exported with in it, such as dropout."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "training_mode",
    "warn of operators that were exported in training mode",
    warn_of_emitted="pipeline.features.training_mode.warnings:warn_of_training_mode",
)
