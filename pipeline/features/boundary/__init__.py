"""Boundary: the data that enters and leaves delegates."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "boundary",
    "measure the data that enters and leaves delegates, for reports",
    measure_delegation="pipeline.features.boundary.boundary:measure_boundary",
)
