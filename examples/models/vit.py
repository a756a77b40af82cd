"""ViT of transformers, an image classifier, with random weights."""

import _torchvision  # noqa: F401
import torch
from transformers import ViTConfig, ViTForImageClassification

from pipeline.program.hugging_face import OneForward

torch.manual_seed(0)
config = ViTConfig(
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    image_size=32,
    patch_size=8,
    num_labels=10,
)
model = OneForward(ViTForImageClassification(config), {"pixel_values": torch.randn(1, 3, 32, 32)})
export_methods = model.export_methods
