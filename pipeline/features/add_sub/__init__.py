"""Additions and subtractions: the smallest complete backend, and a template for others."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "add_sub",
    "lower additions and subtractions to the sample backend, which runs in Python",
    entries="pipeline.features.add_sub.entries",
)
