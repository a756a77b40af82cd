"""Uninitialized memory: finds sources that read it, whose runs may agree by chance."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "uninitialized",
    "detect sources that read uninitialized memory, whose runs may agree only by chance",
    describe_unwritten="pipeline.features.uninitialized.reads:describe_unwritten",
)
