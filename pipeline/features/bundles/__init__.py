"""Bundled programs: a package in one file with inputs and what its source gives on them."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "bundles",
    "leave a .bpte beside a package where `validate.bundle` asks for it",
    report_fields={"bundle": "pipeline.features.bundles.outline:BUNDLE"},
    measuring="pipeline.features.bundles.measuring:BundleMeasuring",
)
