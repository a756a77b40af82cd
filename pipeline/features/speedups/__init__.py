"""Speedups: replacements for slow functions of torch and ExecuTorch in imports and compiles."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "speedups",
    "compile faster than ExecuTorch does, with the same bytes",
    around_lowering="pipeline.features.speedups.patches:fast_lowering",
    import_executorch="pipeline.features.speedups.executorch_import:import_executorch",
)
