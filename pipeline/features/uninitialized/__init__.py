"""Uninitialized memory: finds sources that read it, whose runs may agree by chance."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "uninitialized",
    "detect sources that read uninitialized memory, since their runs may agree by chance",
    describe_unwritten="pipeline.features.uninitialized.reads:describe_unwritten",
)
