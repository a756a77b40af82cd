"""Ranges: the dynamic sizes that lowering narrows, and the operator that did."""

from __future__ import annotations

from pipeline.moments import Feature, Section

FEATURE = Feature(
    "ranges",
    "name the dynamic sizes that lowering narrows, and the operator that narrows them",
    compile_facts="pipeline.features.ranges.facts:RangeFacts",
    sections=(Section(40, "pipeline.features.ranges.section:section"),),
)
