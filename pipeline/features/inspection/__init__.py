"""Inspection: the contents of a package byte by byte, and the methods that use them."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "inspection",
    "describe the contents of packages in contents.json and reports",
    computed_constants="pipeline.features.inspection.computed:iter_computed",
    after_link="pipeline.features.inspection.link:write_contents",
    link_files=("contents.json",),
    outlines={"contents.json": "pipeline.features.inspection.records:CONTENTS_OUTLINE"},
    report_fields={"contents": "pipeline.features.inspection.records:REPORT_FIELD"},
    sections={90: "pipeline.features.inspection.section:section"},
)
