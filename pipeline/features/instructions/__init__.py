"""Instructions: maps a package's instructions to the nodes of the source program."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "instructions",
    "name the model line that an instruction of a package comes from",
    record_emission="pipeline.features.instructions.emit_trace:record_emission",
)
