"""Pages: the reports of packages and the page over all of them, as HTML and Markdown."""

from __future__ import annotations

from pipeline.moments import Command, Feature

FEATURE = Feature(
    "pages",
    "render reports as HTML and Markdown; without it, the figures are only in report.json",
    verbs=(
        Command(
            "report",
            "render the reports of the last validation again",
            "[package ...]",
            examples=(
                (
                    "doit report vision",
                    "write build/vision/report.html and the other formats",
                ),
            ),
            run="pipeline.features.pages.report:run",
        ),
    ),
    package_pages="pipeline.features.pages.render:render_package",
    page_files=("report.html", "report.md"),
    find_build_facts="pipeline.features.pages.provenance:find_provenance",
    overview_pages="pipeline.features.pages.render:render_overview",
)
