"""Imports torchvision, as transformers does too, even if its native library can't be loaded.

PyPI's torchvision for Linux is linked against torch for CUDA. With the CPU build of torch, its
library is silently left out, and the import then fails because it misses two operators that none of
these models call. This module can go once both come from one index
(https://download.pytorch.org/whl/cpu).
"""

import torch
from torch import Tensor, nn

try:
    import torchvision
except RuntimeError:
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
    import torchvision

__all__ = ["settle_batch_norms", "torchvision"]


def settle_batch_norms(model: nn.Module, images: Tensor) -> None:
    """Set the mean and the variance of batch norms from some images, [N, 3, H, W].

    With their initial statistics, the activations of random weights shrink from layer to layer,
    until the outputs no longer depend on the inputs.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0  # discards the initial statistics
    model.train()(images)
