"""Trends: the figures of packages over revisions.

history   a bounded record in the store, with a row for each package and commit
past      the commits of baselines, with which a history begins
section   the table on the page over all packages
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "trends",
    "show size, accuracy and latency over the revisions that were built or accepted",
    record_run="pipeline.features.trends.history:record_figures",
    find_histories="pipeline.features.trends.history:find_histories",
    overview_sections={50: "pipeline.features.trends.section:section"},
)
