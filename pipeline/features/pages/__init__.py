"""Pages: the reports of packages and the page over all of them, as HTML and Markdown."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "pages",
    "render reports as HTML and Markdown; report.json holds all that they show",
    package_pages="pipeline.features.pages.render:render_package",
    page_files=("report.html", "report.md"),
    overview_pages="pipeline.features.pages.render:render_overview",
)
