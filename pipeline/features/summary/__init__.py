"""Summary: a table of the packages of a run, and remarks about each.

table       a row for each package or method
notes       warnings of lowerings, and what a validation left out
full_store  packages whose results were evicted at once
unjudged    the reasons why methods are not judged
unwritten   files and names that a config asks for and a package lacks
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "summary",
    "print a table of packages, and warnings about them, at the end of a run",
    describe_run="pipeline.features.summary.summary:describe_run",
)
