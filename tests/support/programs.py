"""Small programs that together cover what linking must get right."""

from __future__ import annotations

import torch
from torch.export import Dim, ExportedProgram, export


class Shared(torch.nn.Module):
    """Weights and state that several methods share."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)
        self.register_buffer("offset", torch.arange(8.0))
        self.register_buffer("cache", torch.zeros(8))
        self.register_buffer("count", torch.tensor([3]))


class Method(torch.nn.Module):
    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared


class Plain(Method):
    def forward(self, x):
        return torch.softmax(self.shared.first(x), -1) + self.shared.offset


class Stateful(Method):
    """A method with two mutable buffers, one of which has an initial value that must be kept."""

    def forward(self, x):
        self.shared.cache.add_(self.shared.first(x).sum(0))
        self.shared.count.add_(1)
        return self.shared.second(x) * self.shared.cache + self.shared.count


class Branching(Method):
    def forward(self, x):
        offset = self.shared.offset
        y = self.shared.second(x)
        return torch.cond(y.sum() > 0, lambda y: y * 2 + offset, lambda y: y / 3.0, (y,))


def shared_programs(dynamic: bool = True, seed: int = 0) -> dict[str, ExportedProgram]:
    """Export the methods, in an order that isn't alphabetical."""
    shared = Shared(seed).eval().requires_grad_(False)
    shapes = ({0: Dim("rows", min=2, max=16)},) if dynamic else None
    return {
        name: export(method(shared), (torch.randn(3, 8),), dynamic_shapes=shapes)
        for name, method in (("step", Stateful), ("plain", Plain), ("branch", Branching))
    }
