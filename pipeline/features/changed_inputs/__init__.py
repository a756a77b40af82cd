"""Changed inputs: the inputs that a program mutates, read from its operators."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "changed_inputs",
    "find the inputs that a program changes; functionalizing the program instead takes a second "
    "per hundred operators",
    find_changed_specs="pipeline.features.changed_inputs.mutations:find_certain_specs",
)
