"""Segformer of transformers, semantic segmentation, with random weights."""

import _torchvision  # noqa: F401
import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation

from pipeline.program.hugging_face import OneForward

torch.manual_seed(0)
config = SegformerConfig(
    depths=[1, 1],
    num_encoder_blocks=2,
    sr_ratios=[4, 2],
    hidden_sizes=[16, 32],
    patch_sizes=[7, 3],
    strides=[4, 2],
    num_attention_heads=[1, 2],
    mlp_ratios=[2, 2],
    decoder_hidden_size=32,
    num_labels=5,
)
model = OneForward(
    SegformerForSemanticSegmentation(config), {"pixel_values": torch.randn(1, 3, 32, 32)}
)
export_methods = model.export_methods
