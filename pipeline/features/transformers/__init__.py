"""Model sources for models of transformers, which `pte_pipeline.hugging_face` passes on."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "transformers",
    "export the forward passes of transformers' models by pte_pipeline.hugging_face",
    public=("pipeline.features.transformers.hugging_face",),
)
