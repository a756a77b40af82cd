"""Speedups: functions of torch and ExecuTorch that waste time in a compile, replaced meanwhile."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "speedups",
    "compile in a fraction of ExecuTorch's time, to the same bytes",
    around_lowering="pipeline.features.speedups.patches:fast_lowering",
)
