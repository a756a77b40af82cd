"""Control flow: explains what ExecuTorch can't lower or emits incorrectly.

Explanations use the model's terms.
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "control_flow",
    "find control flow in a model that ExecuTorch can't lower, or emits incorrectly",
    explain_lowering="pipeline.features.control_flow.explain:explain_lowering",
    explain_emission="pipeline.features.control_flow.explain:explain_emission",
)
