"""Two methods on two tensors: the smallest multi-method program.

`sub` is written as an addition with `alpha=-1`. A delegate that drops `alpha`, as XNNPACK once did
(https://github.com/pytorch/executorch/issues/11683), then returns the sum, and validation
detects this at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export

SHAPE = (2, 3)


class Add(nn.Module):
    """a, b: float32 [2, 3] -> a + b: float32 [2, 3]."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Sub(nn.Module):
    """a, b: float32 [2, 3] -> a - b: float32 [2, 3]."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.add(a, b, alpha=-1)


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `add` and `sub`, each (a, b) -> result, all float32 [2, 3]."""
    arguments = (torch.ones(SHAPE), torch.ones(SHAPE))
    add, sub = Add(), Sub()
    return {"add": (export(add, arguments), add), "sub": (export(sub, arguments), sub)}


def example_inputs(method: str) -> list[tuple[Tensor, Tensor]]:
    """Return ordinary values, values far apart in size, and signed zeros, for both methods."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(2, *SHAPE, generator=generator)
    steps = torch.arange(6, dtype=torch.float32).reshape(SHAPE)
    return [
        (random[0], random[1]),
        (random[0] * 1e4, random[1] * 1e-4),
        (steps, -steps),
        (torch.zeros(SHAPE), -torch.zeros(SHAPE)),
    ]
