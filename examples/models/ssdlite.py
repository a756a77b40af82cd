"""SSDlite from torchvision, with random weights: backbone and detection head. The application
decodes and suppresses boxes, since ExecuTorch has no operator for `torchvision::nms`."""

import torch
from _torchvision import settle_batch_norms, torchvision
from torch import Tensor, nn
from torch.export import ExportedProgram, export


class Detect(nn.Module):
    """images: float32 [1, 3, 96, 96] -> offsets of boxes [1, N, 4], logits of classes [1, N, 5]."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        predictions = self.head(list(self.backbone(images).values()))
        return predictions["bbox_regression"], predictions["cls_logits"]


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `detect`."""
    torch.manual_seed(0)
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
    detect = Detect(model).requires_grad_(False)
    settle_batch_norms(detect, torch.randn(16, 3, 96, 96))
    return {"detect": (export(detect.eval(), (torch.randn(1, 3, 96, 96),)), detect)}
