"""Schemas: JSON Schemas of the files people write, and of what builds and commands write.

`python -m pte_pipeline.schema` writes schemas of configs and similar files for editors, and
`python -m pte_pipeline.report.schema` prints schemas of records.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "schemas",
    "write JSON Schemas for editors, and print the schemas of reports, events and `--json`",
)
