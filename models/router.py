"""Mixture of two experts that routes a whole sequence to one of them, as task-level mixtures do
(Kudugunta et al., 2021, https://arxiv.org/abs/2110.03742), with control flow in the program.

`route` picks the expert with `torch.cond`, whose branches are sub-graphs with their own weights, so
only one expert runs. `score` returns the gate's probabilities without control flow.

The experts multiply matrices with `@` rather than `nn.Linear`: XNNPACK's partitioner preserves
`aten.linear` for its delegate but never looks into branches, so lowering would fail with
"aten.linear.default was not decomposed or delegated".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn.functional import silu, softmax

WIDTH, HIDDEN, EXPERTS, MAX_LENGTH = 64, 256, 2, 32


class Expert(nn.Module):
    """x: float32 [T, WIDTH] -> float32 [T, WIDTH]; weights are [inputs, outputs]."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Parameter(torch.randn(WIDTH, HIDDEN) * WIDTH**-0.5)
        self.narrow = nn.Parameter(torch.randn(HIDDEN, WIDTH) * HIDDEN**-0.5)
        self.bias = nn.Parameter(torch.randn(HIDDEN) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return silu(x @ self.widen + self.bias) @ self.narrow


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.calm, self.lively = Expert(), Expert()
        self.norm = nn.LayerNorm(WIDTH)

    def hidden(self, x: Tensor) -> Tensor:
        return self.entry(x).tanh()

    def gates(self, hidden: Tensor) -> Tensor:
        """hidden: float32 [T, WIDTH] -> probabilities: float32 [EXPERTS]."""
        return softmax(self.gate(hidden.mean(0, keepdim=True)), dim=-1).squeeze(0)


class Route(nn.Module):
    """x: float32 [T, WIDTH] -> float32 [T, WIDTH], from the more likely expert."""

    def __init__(self, model: Router) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.model.hidden(x)
        gates = self.model.gates(hidden)
        chosen = torch.cond(gates[1] > gates[0], self.model.lively, self.model.calm, (hidden,))
        return self.model.norm(hidden + chosen)


class Score(nn.Module):
    """x: float32 [T, WIDTH] -> probabilities of the experts: float32 [EXPERTS]."""

    def __init__(self, model: Router) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.gates(self.model.hidden(x))


def build() -> Router:
    torch.manual_seed(0)
    return Router().requires_grad_(False).eval()


def export_methods() -> dict[str, tuple[ExportedProgram, nn.Module]]:
    """Export `route` and `score`, whose length T is dynamic, from 2 to MAX_LENGTH."""
    model = build()
    length = Dim("length", min=2, max=MAX_LENGTH)
    arguments = (torch.zeros(8, WIDTH),)
    methods = {"route": Route(model), "score": Score(model)}
    return {
        name: (export(method, arguments, dynamic_shapes=({0: length},)), method)
        for name, method in methods.items()
    }


def example_inputs(method: str) -> list[tuple[Tensor]]:
    """Return sequences of several lengths, some for each expert, for both methods."""
    lengths = (2, 5, 8, 17, 24, MAX_LENGTH)
    return [(_sequence(length, seed),) for seed, length in enumerate(lengths)]


def _sequence(length: int, seed: int) -> Tensor:
    """Return vectors around a random center: float32 [length, WIDTH]."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(WIDTH, generator=generator)
    return centre + torch.randn(length, WIDTH, generator=generator)
