"""Passes: a team's own classes and functions that change programs as they are lowered and emitted.

They live in `passes/` or in installed distributions.

finding   which passes a config may name, and their files
loading   imports passes and instantiates them
inputs    the parts of keys that describe passes
planning  the mistakes in the passes that a config names
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "passes",
    "run a team's passes and memory planning algorithms, and ExecuTorch's passes, by name",
    summarize="pipeline.features.passes.planning:summarize",
    planning="pipeline.features.passes.planning:PassPlanning",
    describe_key="pipeline.features.passes.planning:describe_key",
    user_code={"passes": "pipeline.features.passes.inputs:PassInputs"},
    load_passes="pipeline.features.passes.loading:load_guarded",
)
