"""Modules: the graph of each method by module of the model, on a page that the report links to.

measuring  finds where the operators of each module run, while a package is validated
tree       the modules as a tree, with sums, bytes and errors
pages      the page, and the table in the report that links to it
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "modules",
    "show in modules.html what runs the operators of each module",
    report_fields={"methods.modules": "pipeline.features.modules.outline:MODULES"},
    measuring="pipeline.features.modules.measuring:ModuleMeasuring",
    package_pages="pipeline.features.modules.pages:render_modules",
    page_files=("modules.html",),
    sections={75: "pipeline.features.modules.pages:section"},
)
