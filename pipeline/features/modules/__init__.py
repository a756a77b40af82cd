"""Modules: the graph of each method by module of the model, in a page beside the report.

measuring  which operators of each module run where, as the validation of a package finds them
tree       the modules as a tree, with sums, bytes and errors
pages      the page, and the table of the report that leads to it
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "modules",
    "show which operators of each module run where, in modules.html",
    report_fields={"methods.modules": "pipeline.features.modules.outline:MODULES"},
    measuring="pipeline.features.modules.measuring:ModuleMeasuring",
    package_pages="pipeline.features.modules.pages:render_modules",
    page_files=("modules.html",),
    sections={75: "pipeline.features.modules.pages:section"},
)
