"""Schemas: the JSON Schemas of what builds and commands write, which
`python -m pte_pipeline.report.schema` prints."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "schemas",
    "print the JSON Schemas of report.json, events.jsonl and what commands print with --json",
)
