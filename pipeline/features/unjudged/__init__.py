"""Unjudged: why a comparison of a package with its source shows nothing, to the operator."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "unjudged",
    "name the operator where a source is ill-conditioned, or stops depending on its inputs",
    explain_conditioning="pipeline.features.unjudged.conditioning:describe_conditioning",
    explain_standstill="pipeline.features.unjudged.unmoved_node:describe_standstill",
)
