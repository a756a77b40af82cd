"""Source calls: the outputs of the programs that packages are compared with, kept for reuse."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "source_calls",
    "resume interrupted validations, and share a model's outputs among its packages",
    measuring="pipeline.features.source_calls.measuring:SourceCallMeasuring",
    outlines={"source-call": "pipeline.features.source_calls.outline:SOURCE_CALL"},
)
