"""MobileNet V2 from torchvision, as in ExecuTorch's example, with random weights: one program
classifies, the other returns the features."""

import torch
from _torchvision import settle_batch_norms
from executorch.examples.models.mobilenet_v2.model import MV2UntrainedModel
from torch import Tensor, nn
from torch.export import ExportedProgram, export


class Features(nn.Module):
    """Wraps the features: the weights of a bare `nn.Sequential` have names that begin with a digit,
    on which XNNPACK's FuseBatchNormPass fails."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.features = model.features

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images)


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `classify` and `features` of an image, float32 [1, 3, 64, 64]."""
    torch.manual_seed(0)
    model = MV2UntrainedModel().get_eager_model().requires_grad_(False)
    settle_batch_norms(model, torch.randn(16, 3, 64, 64))
    model.eval()
    images = (torch.randn(1, 3, 64, 64),)
    methods = {"classify": model, "features": Features(model)}
    return {name: (export(method, images), method) for name, method in methods.items()}
