"""The models of the benchmarks, real architectures at small sizes, and their archives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export.pt2_archive._package import package_pt2

WIDTH, LENGTH = 64, 16


class Affine(nn.Module):
    """One linear layer: as small as a method gets."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.number


class AverageAttention(nn.Module):
    """Causal transformer whose layers average all earlier positions (Zhang et al., 2018,
    https://arxiv.org/abs/1805.00631). XNNPACK leaves the running sum to portable kernels, so each
    layer is a separate partition. x: float32 [1, LENGTH, WIDTH] -> the same.

    Args:
        changed: the layer whose feed-forward weights differ from the other models'.
        earlier: start with one more operator outside the partitions, so that all later nodes get
            other names and debug handles.
    """

    def __init__(self, layers: int, changed: int | None = None, earlier: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(_Layer() for _ in range(layers))
        self.earlier = earlier
        if changed is not None:
            nn.init.normal_(self.layers[changed].narrow.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        if self.earlier:
            x = x.cumsum(2)
        for layer in self.layers:
            x = layer(x.cumsum(1))
        return x


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", 1 / torch.arange(1.0, LENGTH + 1).unsqueeze(1))
        self.gate, self.widen = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, total: Tensor) -> Tensor:
        average = total * self.share
        return average + self.narrow(self.gate(average).sigmoid() * self.widen(average))


class Encoder(nn.Module):
    """Transformer encoder (Vaswani et al., 2017) with two layers. x: float32 [1, LENGTH, WIDTH] ->
    the same. Encoders of two seeds have no weight in common."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(_EncoderLayer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        for norm in self.norms:
            nn.init.normal_(norm.weight, 1.0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) * WIDTH**-0.5
        x = self.norms[0](x + self.output(scores.softmax(-1) @ self.value(x)))
        return self.norms[1](x + self.narrow(self.widen(x).relu()))


class Wide(nn.Module):
    """A small graph with large weights: a perceptron of `megabytes` MB. x: float32 [1, 1024]."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (nn.Linear(1024, 1024) for _ in range(megabytes // 4))
        self.layers = nn.Sequential(*(each for linear in layers for each in (linear, nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def exported(model: nn.Module, *shape: int) -> ExportedProgram:
    """Export a model that takes one tensor, by default of shape [1, LENGTH, WIDTH]."""
    shape = shape or (1, LENGTH, WIDTH)
    return export(model.eval().requires_grad_(False), (torch.zeros(shape),))


def write_archive(path: Path, programs: Mapping[str, ExportedProgram]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    package_pt2(str(path), exported_programs=dict(programs))
