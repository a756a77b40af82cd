"""Unmet: requests of a config that its lowering did not carry out."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "unmet",
    "refuse packages for which a partitioner delegates nothing or a quantizer quantizes nothing",
    check_compiled="pipeline.features.unmet.problems:find_unmet",
)
