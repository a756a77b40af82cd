"""Divergences: where an exported program diverges from its eager reference, and why."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "divergences",
    "name the operator and line at which an export diverges from its reference",
    explain_divergence="pipeline.features.divergences.reference_divergence:describe_divergence",
)
