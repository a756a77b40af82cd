"""Families: packages that an app ships together, and that share their weights.

planning   which packages form a family, and what determines the weights that they share
share      the shared files: made once, by whichever package is linked first
layout     lays them out
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "families",
    "store the weights that packages share in files that all of these packages load (`family`)",
    config={"package": "pipeline.features.families.config:add_fields"},
    summarize="pipeline.features.families.config:summarize",
    planning="pipeline.features.families.planning:FamilyPlanning",
    describe_key="pipeline.features.families.planning:describe_difference",
    share_weights="pipeline.features.families.share:find_shared",
    outlines={
        "family": "pipeline.features.families.outlines:FAMILY",
        "family-files": "pipeline.features.families.outlines:FAMILY_FILES",
    },
    report_fields={"family": "pipeline.features.families.outlines:REPORT_FAMILY"},
    after_link="pipeline.features.families.share:describe_family",
    sections={100: "pipeline.features.families.section:section"},
    overview_sections={50: "pipeline.features.families.section:overview_section"},
)
