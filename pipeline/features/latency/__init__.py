"""Latency: the running times of methods on this machine, compared with their source programs."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "latency",
    "time methods on this machine, and check them against max_latency_ratio",
    report_fields={"methods.latency": "pipeline.features.latency.outline:LATENCY"},
    measuring="pipeline.features.latency.measuring:LatencyMeasuring",
    sections={110: "pipeline.features.latency.section:section"},
)
