"""One module for each section of a report.

`section(report)` makes its tables, charts and paragraphs from the record; an empty one is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.report.elements import ReportSection
from pipeline.report.sections import (
    bundle,
    contents,
    delegation,
    failures,
    files,
    gates,
    latency,
    numerics,
)

SECTIONS = (
    failures.section,
    gates.section,
    numerics.section,
    delegation.section,
    contents.section,
    latency.section,
    bundle.section,
    numerics.calls_section,
    files.section,
)


def report_sections(report: Mapping[str, Any]) -> list[ReportSection]:
    """Return the sections of a package's report, in their order, without empty ones."""
    return [section for make in SECTIONS if (section := make(report)).parts]
