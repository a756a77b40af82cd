"""Llama of transformers, with random weights: `prefill` and `decode` over a static cache."""

import _torchvision  # noqa: F401
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.program.hugging_face import CausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
model = CausalLM(LlamaForCausalLM(config), max_seq_len=64)
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
