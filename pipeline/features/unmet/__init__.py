"""Unmet: requests of a config that its lowering did not carry out."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "unmet",
    "refuse packages from which a partitioner takes nothing, or in which a quantizer "
    "quantizes nothing",
    check_compiled="pipeline.features.unmet.problems:find_unmet",
)
