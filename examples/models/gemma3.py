"""Gemma 3 of transformers, with random weights and layers of both kinds: local and global."""

import _torchvision  # noqa: F401
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from pipeline.program.hugging_face import CausalLM

torch.manual_seed(0)
config = Gemma3TextConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=64,
    sliding_window=32,
    layer_types=["sliding_attention", "full_attention"],
)
model = CausalLM(Gemma3ForCausalLM(config), max_seq_len=64)
export_methods, example_inputs = model.export_methods, model.example_inputs
constant_methods = model.constant_methods
