"""Arm's backends: Ethos-U and VGF, and TOSA, through which both are lowered."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "arm",
    "lower to Ethos-U, VGF and TOSA",
    entries="pipeline.features.arm.entries",
)
