"""Reasons: why partitioners leave operators to portable kernels, and which names they don't know.

reasons     why nodes are left, noted in their metadata
name_lists  names in options of partitioners that fit no node
partitions  when partitioners are followed for both
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "reasons",
    "explain why partitioners leave operators, and report names in their options that match "
    "nothing",
    follow_partition="pipeline.features.reasons.partitions:follow_partition",
)
