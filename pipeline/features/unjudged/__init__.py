"""Unjudged: comparisons of a package with its source that show nothing, and why.

judge         follows the outputs of a method, call by call
movement      how far an output moves over the calls
branches      branches and bodies of control flow that no call ran
standstill    outputs that no inputs moved, so that no call could have failed
dependence    which outputs depend on the values of inputs, according to the graph
unmoved_node  the operator at which an output stops depending on the inputs
conditioning  the operator at which a source loses precision that the package can't keep either
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "unjudged",
    "leave outputs that don't depend on inputs unjudged, and name the operator where the "
    "dependence ends",
    explain_conditioning="pipeline.features.unjudged.conditioning:describe_conditioning",
    judge_movement="pipeline.features.unjudged.judge:MovementJudge",
)
