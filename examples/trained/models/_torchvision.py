"""Imports torchvision, as transformers does too, even if its native library can't be loaded.

PyPI's torchvision for Linux is linked against torch for CUDA. With the CPU build of torch, its
library is silently left out, and the import then fails because it misses two operators that none of
these models call. This module can go once both come from one index
(https://download.pytorch.org/whl/cpu).
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
