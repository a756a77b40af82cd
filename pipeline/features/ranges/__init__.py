"""Ranges: dynamic sizes that lowering narrows, and dynamic sizes too large for any package.

A narrowed size is reported with the operator that narrowed it.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "ranges",
    "report dynamic sizes that lowering narrows, and dynamic sizes that are too large for any "
    "package",
    compile_facts="pipeline.features.ranges.facts:RangeFacts",
    judge_narrowed="pipeline.features.ranges.narrowed:NarrowedSizes",
    sections={40: "pipeline.features.ranges.section:section"},
)
