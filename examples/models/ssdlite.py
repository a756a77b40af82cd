"""SSDlite of torchvision, with random weights: backbone and detection head. Boxes are decoded and
suppressed by the application: `torchvision::nms` is no operator of ExecuTorch."""

import torch
from _torchvision import torchvision
from torch import Tensor, nn
from torch.export import ExportedProgram, export


class Detect(nn.Module):
    """images: float32 [1, 3, 96, 96] -> offsets of boxes [1, N, 4], logits of classes [1, N, 5]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.head(list(self.backbone(images).values()))
        return found["bbox_regression"], found["cls_logits"]


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """`detect`."""
    torch.manual_seed(0)
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
    detect = Detect(model).requires_grad_(False)
    detect(torch.randn(4, 3, 96, 96))  # for batch norms that keep values near 1
    return {"detect": (export(detect.eval(), (torch.randn(1, 3, 96, 96),)), detect)}
