"""torchao: quantizes the weights of language models."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "torchao",
    "quantize weights of language models with torchao's schemes",
    entries="pipeline.features.torchao.entries",
)
