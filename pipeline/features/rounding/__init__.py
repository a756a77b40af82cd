"""Rounding: limits on outputs, derived from how far two correct implementations can differ.

source  runs a program with every value rounded differently
sums    how many values an operator sums for each of its results
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "rounding",
    "derive limits from the effect of rounding on a program; without it, limits depend only on "
    "dtypes",
    round_sources="pipeline.features.rounding.source:round_sources",
)
