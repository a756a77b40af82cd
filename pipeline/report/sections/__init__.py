"""Sections of a report, a module for each or for a few.

`section(report)` makes tables, charts and paragraphs from the record; an empty one is left out.
"""

from __future__ import annotations

from pipeline.report.elements import Json, ReportSection
from pipeline.report.sections import (
    contents,
    delegation,
    estimates,
    failures,
    family,
    files,
    gates,
    latency,
    numerics,
    operators,
    quantization,
    ranges,
    state,
    warnings,
)

SECTIONS = (
    failures.section,
    gates.section,
    warnings.section,
    state.section,
    ranges.section,
    numerics.section,
    quantization.section,
    delegation.section,
    operators.section,
    contents.section,
    family.section,
    latency.section,
    estimates.section,
    files.device_section,
    numerics.calls_section,
    files.section,
)


def report_sections(report: Json) -> list[ReportSection]:
    """Return the sections of a package's report, in their order, without empty ones."""
    return [section for make in SECTIONS if (section := make(report)).parts]
