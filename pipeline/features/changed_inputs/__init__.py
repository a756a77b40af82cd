"""Changed inputs: the inputs that a program mutates, read from its operators."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "changed_inputs",
    "find what a program changes from its operators, which saves a second per "
    "functionalization",
    find_changed_specs="pipeline.features.changed_inputs.mutations:find_certain_specs",
)
