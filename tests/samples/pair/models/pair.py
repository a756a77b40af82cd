"""Two methods that share a matrix."""

import torch
from _parts import SIZE
from torch.export import export


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Linear(SIZE, SIZE)


class Encode(torch.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.shared = shared

    def forward(self, x):
        return torch.relu(self.shared.weight(x))


class Decode(Encode):
    def forward(self, x):
        return torch.sigmoid(self.shared.weight(x) - 1.0)


def export_methods():
    shared = Shared().eval().requires_grad_(False)
    x = torch.randn(2, SIZE)
    return {"encode": export(Encode(shared), (x,)), "decode": export(Decode(shared), (x,))}
