"""Qwen3 of transformers, from a folder that `from_pretrained` reads; `checkpoints.py` makes it."""

from pathlib import Path

import _torchvision  # noqa: F401

from pipeline.program.hugging_face import CausalLM

model = CausalLM(Path(__file__).parents[1] / "checkpoints" / "qwen3", max_seq_len=64)
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
