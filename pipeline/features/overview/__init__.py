"""Overview: the reports over all packages, in `build/`.

This feature collects the data; others render it (`overview_pages`, `report_formats`).
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "overview",
    "write the reports on all packages to build/: index.html, summary.md and junit.xml",
    write_overview="pipeline.features.overview.overview:write_overview",
)
