"""Writes tiny transformers checkpoints with random weights, the same in each run: `python
checkpoints.py FOLDER MODEL ...`."""

import sys
from pathlib import Path

import torch
import transformers

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def make_text():
    config = transformers.LlamaConfig(
        **SIZES, vocab_size=64, num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0
    )
    return transformers.LlamaForCausalLM(config)


def make_vision():
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=8, num_labels=3)
    return transformers.ViTForImageClassification(config)


def make_speech():
    # Group norm, the default in the first layers, returns NaN on silence in ExecuTorch's runtime.
    convolutions = {"conv_dim": (8, 8), "conv_kernel": (8, 8), "conv_stride": (16, 16)}
    config = transformers.HubertConfig(
        **SIZES,
        **convolutions,
        feat_extract_norm="layer",
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        vocab_size=32,
    )
    return transformers.HubertForCTC(config)


MAKERS = {"text": make_text, "vision": make_vision, "speech": make_speech}

if __name__ == "__main__":
    folder, *models = sys.argv[1:]
    for model in models:
        torch.manual_seed(0)
        MAKERS[model]().save_pretrained(Path(folder) / model)
