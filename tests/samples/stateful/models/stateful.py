"""Methods on one state: two change it, one only reads it."""

import torch
from torch.export import export


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 4))


class Write(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        self.model.cache.copy_(self.model.linear(x))
        return self.model.cache * 2


class Step(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        self.model.cache.add_(x)
        return self.model.linear(self.model.cache)


class Read(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.linear(self.model.cache + x)


METHODS = {"write": Write, "step": Step, "read": Read}


def build():
    torch.manual_seed(0)
    return Model().eval().requires_grad_(False)


def export_methods():
    model = build()
    return {name: export(method(model), (torch.randn(2, 4),)) for name, method in METHODS.items()}


def example_inputs(method):
    torch.manual_seed(1)
    return [(torch.randn(2, 4),) for _ in range(3)]
