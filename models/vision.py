"""Image model with one trunk and two heads, after MobileNetV3 (Howard et al., 2019,
https://arxiv.org/abs/1905.02244): inverted residual blocks with squeeze-and-excitation and
hard-swish, batch norm after each convolution.

`features` returns the map that other models build on, `classify` logits, and `embed` a vector of
length 1 for retrieval. All three use the same trunk weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.nn.functional import adaptive_avg_pool2d, hardsigmoid, normalize

SIZE, CHANNELS, CLASSES, EMBEDDING = 64, 96, 100, 64
# (input channels, expanded channels, output channels, stride, squeeze-and-excitation, hard-swish)
BLOCKS = (
    (16, 48, 24, 2, False, False),
    (24, 72, 24, 1, False, False),
    (24, 120, 48, 2, True, True),
    (48, 240, CHANNELS, 2, True, True),
)


class ConvNorm(nn.Sequential):
    """Convolution, batch norm, and an activation."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        )


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from all channels' means (Hu et al., 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * hardsigmoid(self.excite(self.squeeze(adaptive_avg_pool2d(x, 1)).relu()))


class InvertedResidual(nn.Module):
    """Widens, filters each channel by itself, narrows; adds its input if the shape allows it."""

    def __init__(
        self, inputs: int, expanded: int, outputs: int, stride: int, excite: bool, hard_swish: bool
    ) -> None:
        super().__init__()
        activation: Callable[[], nn.Module] = nn.Hardswish if hard_swish else nn.ReLU
        self.expand = nn.Sequential(ConvNorm(inputs, expanded, 1), activation())
        self.filter = nn.Sequential(
            ConvNorm(expanded, expanded, 3, stride, groups=expanded), activation()
        )
        self.excite = SqueezeExcite(expanded) if excite else nn.Identity()
        self.project = ConvNorm(expanded, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.excite(self.filter(self.expand(x))))
        return x + y if self.residual else y


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, 16, 3, stride=2), nn.Hardswish())
        self.blocks = nn.Sequential(*(InvertedResidual(*block) for block in BLOCKS))
        self.classifier = nn.Sequential(
            nn.Linear(CHANNELS, 256), nn.Hardswish(), nn.Linear(256, CLASSES)
        )
        self.embedder = nn.Linear(CHANNELS, EMBEDDING)

    def trunk(self, image: Tensor) -> Tensor:
        return self.blocks(self.stem(image))

    def pooled(self, image: Tensor) -> Tensor:
        return adaptive_avg_pool2d(self.trunk(image), 1).flatten(1)


class Features(nn.Module):
    """image: float32 [1, 3, 64, 64] -> map: float32 [1, CHANNELS, 4, 4]."""

    def __init__(self, model: Vision) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return self.model.trunk(image)


class Classify(nn.Module):
    """image: float32 [1, 3, 64, 64] -> logits: float32 [1, CLASSES]."""

    def __init__(self, model: Vision) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return self.model.classifier(self.model.pooled(image))


class Embed(nn.Module):
    """image: float32 [1, 3, 64, 64] -> vector of length 1: float32 [1, EMBEDDING]."""

    def __init__(self, model: Vision) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return normalize(self.model.embedder(self.model.pooled(image)), dim=1)


def build() -> Vision:
    """Return the model with seeded weights, and batch statistics like a trained model's."""
    torch.manual_seed(0)
    model = Vision()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, std=0.1)
    return model.requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `features`, `classify` and `embed`, each of one image, float32 [1, 3, 64, 64]."""
    model = build()
    arguments = (torch.zeros(1, 3, SIZE, SIZE),)
    methods = {"features": Features(model), "classify": Classify(model), "embed": Embed(model)}
    return {name: (export(method, arguments), method) for name, method in methods.items()}


def example_inputs(method: str) -> list[tuple[Tensor]]:
    """Return three images and a dim one, for all methods."""
    return [(_image(seed),) for seed in range(3)] + [(_dim(_image(3)),)]


def calibration_inputs(method: str) -> list[tuple[Tensor]]:
    """Return other images and dim images like the examples."""
    images = [_image(100 + seed) for seed in range(3)]
    return [(image,) for image in (*images, _dim(_image(103)))]


def _image(seed: int) -> Tensor:
    """Return smooth waves with a little noise, mean 0 and deviation 1, like normalized
    photographs: float32 [1, 3, 64, 64]."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.linspace(0, 6.28, SIZE)
    across, down, phase = torch.rand(3, 3, 1, 1, generator=generator) * 4
    image = torch.sin(across * grid + down * grid.unsqueeze(1) + phase)
    image = image + 0.2 * torch.randn(3, SIZE, SIZE, generator=generator)
    return ((image - image.mean()) / image.std()).unsqueeze(0)


def _dim(image: Tensor) -> Tensor:
    return image * 0.5 - 0.5
