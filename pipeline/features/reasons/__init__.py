"""Reasons: why partitioners leave operators to portable kernels, and unknown names in options.

reasons     why nodes are left, recorded in their metadata
name_lists  names in partitioners' options that match no node
partitions  follows a partitioner for both
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "reasons",
    "explain why partitioners don't take operators, and report names in their options that "
    "match nothing",
    follow_partition="pipeline.features.reasons.partitions:follow_partition",
)
