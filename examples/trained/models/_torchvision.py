"""Imports torchvision, which transformers imports too, where its library can't be loaded.

PyPI's torchvision for Linux is linked against CUDA's torch. Beside torch for CPUs its library is
left out without a word, and the import fails for want of two operators that none of these models
calls. This can go where both come from one index (https://download.pytorch.org/whl/cpu).
"""

import torch

try:
    import torchvision
except RuntimeError:
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
    import torchvision

__all__ = ["torchvision"]
