"""JUnit: reports as XML for CI servers."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "junit",
    "write junit.xml next to each package and in build/, for CI servers",
    report_formats={"junit.xml": "pipeline.features.junit.junit:junit"},
)
