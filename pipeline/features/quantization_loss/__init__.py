"""Quantization loss: is a quantized program good enough to replace the float one?"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "quantization_loss",
    "judge the loss from quantization; without it, packages are only compared with their "
    "quantized programs",
    judge_quantization="pipeline.features.quantization_loss.calls:FloatComparison",
)
