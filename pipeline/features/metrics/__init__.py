"""Task metrics: a team's own measures of its model, such as top-1, for a package and its source.

If this folder is deleted, builds still compare packages with their sources number by number.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "metrics",
    "check packages on your data, against the metrics in metrics/",
    config={"validate": "pipeline.features.metrics.config:add_fields"},
    summarize="pipeline.features.metrics.planning:summarize",
    planning="pipeline.features.metrics.planning:MetricPlanning",
    describe_key="pipeline.features.metrics.planning:describe_key",
    measuring="pipeline.features.metrics.measuring:MetricMeasuring",
    judge="pipeline.features.metrics.judging:prepare_judging",
    sections={12: "pipeline.features.metrics.section:section"},
    outlines={"metric": "pipeline.features.metrics.store_form:METRIC"},
)
