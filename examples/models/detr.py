"""DETR from transformers, object detection over a ResNet, with random weights."""

import _transformers as models
import torch

from pte_pipeline.hugging_face import OneForward

model = OneForward(
    models.detr(),
    {"pixel_values": torch.zeros(1, 3, 64, 64)},
    outputs=("logits", "pred_boxes"),
)
export_methods = model.export_methods
