"""Qwen3 from transformers, from a folder for `from_pretrained` that `checkpoints.py` writes."""

import _transformers as models

from pte_pipeline.hugging_face import CausalLM

model = CausalLM(models.QWEN3, models.POSITIONS, methods=("prefill", "decode"))
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
