"""Llama from transformers, with random weights: `prefill` and `decode` over a static cache."""

import _transformers as models

from pte_pipeline.hugging_face import CausalLM

model = CausalLM(models.llama(), models.POSITIONS, methods=("prefill", "decode"))
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
