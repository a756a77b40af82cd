"""Uninitialized memory: finds sources that read it, whose runs may agree by chance."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "uninitialized",
    "detect sources whose runs may agree only by chance, since they read uninitialized memory",
    describe_unwritten="pipeline.features.uninitialized.reads:describe_unwritten",
)
