"""Locating: traces a failure of a package to an operator, a line, a delegate, a byte."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "locating",
    "find the operator, line and delegate where a failed method goes wrong, and reproduce it",
    measuring="pipeline.features.locating.measuring:LocatingMeasuring",
)
