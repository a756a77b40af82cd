"""Departures: where an exported program departs from its eager reference, and why."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "departures",
    "name the operator and line where an export differs from its reference",
    explain_departure="pipeline.features.departures.reference_departure:describe_departure",
)
