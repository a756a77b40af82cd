"""Segformer from transformers, semantic segmentation, with random weights."""

import _transformers as models
import torch

from pte_pipeline.hugging_face import OneForward

model = OneForward(models.segformer(), {"pixel_values": torch.zeros(1, 3, 32, 32)})
export_methods = model.export_methods
