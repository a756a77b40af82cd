"""Two methods that share a buffer, which both modify."""

import torch
from torch.export import export


class Add(torch.nn.Module):
    def __init__(self, count, weight):
        super().__init__()
        self.register_buffer("count", count)
        self.weight = weight

    def forward(self, x):
        self.count.add_(x)
        return self.count * self.weight


class Take(Add):
    def forward(self, x):
        self.count.sub_(x)
        return self.count + 1.5


def export_methods():
    count = torch.zeros(3)
    weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]), requires_grad=False)
    x = torch.ones(3)
    return {"add": export(Add(count, weight), (x,)), "take": export(Take(count, weight), (x,))}


def example_inputs(method):
    return [(torch.tensor([1.0, 2.0, 3.0]),)]
