"""Control flow: explains, in the model's terms, what ExecuTorch can't lower or emits
incorrectly."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "control_flow",
    "find control flow in a model that ExecuTorch can't lower, or emits incorrectly",
    explain_lowering="pipeline.features.control_flow.explain:explain_lowering",
    explain_emission="pipeline.features.control_flow.explain:explain_emission",
)
