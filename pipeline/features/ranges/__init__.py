"""Ranges: the dynamic sizes that lowering narrows, with the operator that did, and those that no
package can hold."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "ranges",
    "name the dynamic sizes that lowering narrows, and those that no package can hold",
    compile_facts="pipeline.features.ranges.facts:RangeFacts",
    judge_narrowed="pipeline.features.ranges.narrowed:NarrowedSizes",
    sections={40: "pipeline.features.ranges.section:section"},
)
