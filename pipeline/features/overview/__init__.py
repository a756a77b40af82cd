"""Overview: the reports over all packages, in `build/`.

Other features render them (`overview_pages`, `report_formats`); this one collects what they need.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "overview",
    "write reports over all packages to build/: index.html, summary.md and junit.xml",
    write_overview="pipeline.features.overview.overview:write_overview",
)
