"""Locating: runs packages in Python, and traces failures to an operator, line, delegate or byte."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "locating",
    "run packages in Python, including methods with shared state, and find where a package "
    "goes wrong",
    devices={"interpreter": "pipeline.features.locating.interpreter:InterpreterDevice"},
    call_together="pipeline.features.locating.sequences:call_together",
    locate_on_device="pipeline.features.locating.on_device:locate_on_device",
    report_fields={
        "methods.culprits": "pipeline.features.locating.records:CULPRITS",
        "methods.culprit_notes": "pipeline.features.locating.records:CULPRIT_NOTES",
    },
    measuring="pipeline.features.locating.measuring:LocatingMeasuring",
)
