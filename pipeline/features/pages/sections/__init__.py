"""Sections of a report: a module for each, or for a few.

`section(report)` makes tables, charts and paragraphs from the record; an empty section is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.features.pages.sections import (
    delegation,
    estimates,
    failures,
    files,
    numerics,
    operators,
    quantization,
    state,
    warnings,
)
from pipeline.moments import find_features, load
from pipeline.report.elements import Json, ReportSection

# By rank; features place theirs between these (`moments.Feature.sections`).
SECTIONS: dict[int, Callable[[Json], ReportSection]] = {
    0: failures.section,
    20: warnings.section,
    30: state.section,
    50: numerics.section,
    60: quantization.section,
    70: delegation.section,
    80: operators.section,
    120: estimates.section,
    130: files.device_section,
    140: numerics.calls_section,
    150: files.section,
}


def report_sections(report: Json) -> list[ReportSection]:
    """Return the sections of a package's report in their order, without empty ones."""
    makers = list(SECTIONS.items())
    makers += [(rank, load(function)) for rank, function in find_sections()]
    makers.sort(key=lambda maker: maker[0])
    sections = [make(report) for _, make in makers]
    return [section for section in sections if section.parts]


def find_sections(moment: str = "sections") -> list[tuple[int, str]]:
    """Return the rank and the function of each section that features add to a package's report.

    With `overview_sections`, these are the sections of the page over all packages.
    """
    sections: list[tuple[int, str]] = []
    for feature in find_features():
        sections += getattr(feature, moment).items()
    return sections
