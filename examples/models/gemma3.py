"""Gemma 3 from transformers, with random weights and layers of both kinds: local and global."""

import _transformers as models

from pte_pipeline.hugging_face import CausalLM

model = CausalLM(models.gemma3(), models.POSITIONS, methods=("prefill", "decode"))
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
