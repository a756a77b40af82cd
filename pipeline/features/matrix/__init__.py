"""Matrix: several packages from one config."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "matrix",
    "make several packages from one config (`matrix`)",
    expand_matrix="pipeline.features.matrix.matrix:expand_matrix",
)
