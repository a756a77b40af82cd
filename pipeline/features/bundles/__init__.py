"""Bundled programs: a package in one file with inputs and its source's outputs for them."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "bundles",
    "write a .bpte next to a package if `validate.bundle` is set",
    report_fields={"bundle": "pipeline.features.bundles.outline:BUNDLE"},
    measuring="pipeline.features.bundles.measuring:BundleMeasuring",
)
