"""Schemas: the JSON Schemas of what people write and of what builds and commands write.

`python -m pte_pipeline.schema` writes those of configs and their like for editors, and
`python -m pte_pipeline.report.schema` prints those of records.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "schemas",
    "write JSON Schemas for editors, and print those of reports, events and `--json`",
)
