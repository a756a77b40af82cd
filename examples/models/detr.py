"""DETR of transformers, object detection over a ResNet, with random weights."""

import _torchvision  # noqa: F401
import torch
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

from pipeline.program.hugging_face import OneForward

torch.manual_seed(0)
backbone = ResNetConfig(
    embedding_size=8,
    hidden_sizes=[8, 16, 16, 32],
    depths=[1, 1, 1, 1],
    layer_type="basic",
    out_features=["stage4"],
)
config = DetrConfig(
    use_timm_backbone=False,
    backbone_config=backbone,
    use_pretrained_backbone=False,
    d_model=32,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    num_queries=10,
    num_labels=5,
)
model = OneForward(
    DetrForObjectDetection(config),
    {"pixel_values": torch.randn(1, 3, 64, 64)},
    outputs=("logits", "pred_boxes"),
)
export_methods = model.export_methods
