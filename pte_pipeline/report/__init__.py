"""Renders pages from the records of builds: docs/reference/reports.md."""

from pte_pipeline.name_conflict import claim_pipeline

claim_pipeline(tell=True)

from pipeline.report.packages import Entry as Entry
from pipeline.report.render import render as render
from pipeline.report.render import render_all as render_all
