"""Tracing: records what user code touches, which decides whether its result may be reused."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "tracing",
    "track the files that exporters and passes read, and reuse exports of exporters without "
    "`INPUTS`",
    watch_exporter="pipeline.features.tracing.export_reads:TracedReads",
    watch_passes="pipeline.features.tracing.pass_reads:PassReads",
)
