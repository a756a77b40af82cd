"""Buffers and inputs that are modified, shared or returned."""

import torch
from torch import nn
from torch.export import Dim

from tests.sweep.cases import export_of, linear, method, program, randn


@method(randn(4), randn(4))
def out_is_input(self, x, y):
    return x, y, x


@method(randn(4))
def out_is_input_and(self, x):
    return x, x + 1, x


@method(randn(8), a=linear())
def out_is_param(self, x):
    return x + 1, self.a.weight, self.a.bias


@method(randn(8), c=torch.arange(8.0))
def out_is_buffer(self, x):
    return x + 1, self.c


@method(randn(8))
def out_is_const(self, x):
    return x + 1, torch.tensor([1.0, 2.0])


@method(randn(8))
def out_twice(self, x):
    y = x + 1
    return y, y, {"y": y}


@method(randn(4, 2))
def out_view(self, x):
    return x.view(2, 4), x[0], x.t()


@method(randn(4), randn(4))
def mutated_input(self, x, y):
    x.add_(y)
    return x * 2


@method(randn(4), randn(4))
def mutated_input_only(self, x, y):
    x.copy_(y)


@method(randn(4), randn(4))
def mutated_input_returned(self, x, y):
    x.add_(y)
    return x


@method(randn(4), randn(1), torch.tensor([1]))
def mutated_input_slice(self, x, y, i):
    x[i] = y
    return x.sum()


@method(randn(4), c=torch.ones(4))
def mutated_buffer(self, x):
    self.c.mul_(2).add_(x)
    return self.c + 1


@method(randn(1, 2), torch.tensor([2]), c=torch.zeros(4, 2))
def mutated_buffer_index(self, x, i):
    self.c.index_copy_(0, i, x)
    return self.c.clone()


@method(randn(4), c=torch.zeros(4))
def mutated_buffer_returned(self, x):
    self.c.add_(x)
    return self.c


@method(randn(4), c=torch.zeros(4))
def buffer_attr_assign(self, x):
    self.c = self.c + x
    return self.c * 2


@program
def buffer_nonpersistent():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("c", torch.arange(4.0), persistent=False)
            self.register_buffer("d", torch.zeros(4), persistent=False)

        def forward(self, x):
            self.d.add_(x)
            return x + self.c + self.d

    return export_of(M(), (randn(4),))


@program
def buffer_shared():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("c", torch.arange(4.0))
            self.d = nn.Module()
            self.d.register_buffer("e", self.c)

        def forward(self, x):
            return x + self.c + self.d.e

    return export_of(M(), (randn(4),))


@program
def buffer_shared_mutated():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("c", torch.arange(4.0))
            self.d = nn.Module()
            self.d.register_buffer("e", self.c)

        def forward(self, x):
            self.c.add_(1)
            return x + self.c + self.d.e

    return export_of(M(), (randn(4),))


@program
def buffer_view_of_other():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            b = torch.arange(8.0)
            self.register_buffer("c", b[:4])
            self.register_buffer("e", b[4:])
            self.register_buffer("f", b.view(2, 4).t())

        def forward(self, x):
            return x + self.c * self.e + self.f.sum()

    return export_of(M(), (randn(4),))


@program
def tied_weights():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.e = nn.Embedding(10, 8)
            self.h = nn.Linear(8, 10, bias=False)
            self.h.weight = self.e.weight

        def forward(self, x):
            return self.h(self.e(x))

    return export_of(M(), (torch.tensor([1, 2]),))


@method(randn(4), a=linear(), c=torch.ones(3))
def unused_param(self, x):
    return x + 1


@program
def const_mutated():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = torch.tensor([1.0, 2.0, 3.0, 4.0])

        def forward(self, x):
            self.k.add_(1)
            return x + self.k

    return export_of(M(), (randn(4),))


@method(
    randn(1, 2, 4),
    torch.tensor([0, 1]),
    dynamic={"x": {1: Dim("s", min=1, max=16)}, "pos": {0: Dim("s", min=1, max=16)}},
    k=torch.zeros(1, 16, 4),
)
def kvcache(self, x, pos):
    self.k.index_copy_(1, pos, x)
    return (self.k * 2).sum(-1), pos + 1


@method(randn(2, 8), a=linear())
def module_called_twice(self, x):
    return self.a(self.a(x))


@program
def parameter_list():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(3)])
            self.d = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})

        def forward(self, x):
            return sum(self.p) + self.d["a"] * x

    return export_of(M(), (randn(2),))


@method(randn(4), n=torch.tensor(0))
def state_scalar(self, x):
    self.n.add_(1)
    return x * self.n
