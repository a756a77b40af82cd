"""XNNPACK, for CPUs.

entries    its options, partitioner and quantizer
passes     its passes over a partition, without their needless work
cache_key  the part of a partition that its preprocess function reads
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "xnnpack",
    "lower to XNNPACK, on CPUs",
    entries="pipeline.features.xnnpack.entries",
)
