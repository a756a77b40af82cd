"""Methods that XNNPACK takes wholly, in part, and not at all."""

import torch
from torch.export import export


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Part(Whole):
    def forward(self, x):
        return torch.cumsum(super().forward(x), -1)


class Nothing(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.cumsum(x, -1), 0)


class Empty(torch.nn.Module):
    def forward(self, x):
        return x


METHODS = {"whole": Whole, "part": Part, "nothing": Nothing, "empty": Empty}


def export_methods():
    torch.manual_seed(0)
    modules = {name: method().eval().requires_grad_(False) for name, method in METHODS.items()}
    return {name: export(module, (torch.randn(2, 4),)) for name, module in modules.items()}


def example_inputs(method):
    torch.manual_seed(1)
    return [(torch.randn(2, 4),) for _ in range(3)]
