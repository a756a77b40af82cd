"""Regions without gradients or in another dtype, and function transforms."""

import torch
from torch import nn
from torch.export import export
from torch.export.experimental import _export_forward_backward
from torch.utils.checkpoint import checkpoint as recompute

from tests.sweep.cases import export_of, linear, method, module, program, randn


@method(randn(2, 8), a=linear(), b=linear())
def autocast(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.a(x)
    return self.b(y.float())


@method(randn(2, 8), a=linear(), b=linear())
def autocast_nested_grad(self, x):
    with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        y = self.a(x)
        with torch.autocast("cpu", enabled=False):
            y = self.b(y.float())
    with torch.enable_grad():
        return self.b(y.float())


@method(randn(2, 8), strict=True, a=linear(), b=linear())
def autocast_strict(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.a(x)
    return self.b(y.float())


@method(randn(2, 8), train=True, a=linear(), b=linear())
def no_grad_nested(self, x):
    with torch.no_grad():
        y = self.a(x)
        with torch.enable_grad():
            z = self.b(y)
            with torch.no_grad():
                z = z + 1
    return self.b(y) + z


@method(randn(2, 8), train=True, a=linear(), b=linear())
def no_grad_in_cond(self, x):
    def t(y):
        with torch.no_grad():
            z = self.a(y)
        return z

    return torch.cond(x.sum() > 0, t, lambda y: y - 1, (x,))


@method(randn(2, 8), train=True, a=linear(), b=linear())
def no_grad_multi_out(self, x):
    with torch.no_grad():
        a, b = self.a(x), x + 1
    return {"a": a * b, "b": a}


@method(randn(2, 8), train=True, a=linear(), b=linear())
def inference_mode(self, x):
    with torch.inference_mode():
        y = self.a(x)
    return y + 1


@method(randn(4, 8), train=True, a=linear())
def checkpoint(self, x):
    return recompute(lambda y: self.a(y).relu(), x, use_reentrant=False)


@method(randn(4, 8), a=linear())
def vmap(self, x):
    return torch.vmap(lambda r: self.a(r).sum())(x)


@method(randn(4, 8))
def func_grad(self, x):
    return torch.func.grad(lambda r: (r * r).sum())(x)


@method(randn(4, 8))
def func_jvp(self, x):
    return torch.func.jvp(lambda r: r.sin(), (x,), (x,))


@method(randn(4))
def func_jacrev(self, x):
    return torch.func.jacrev(lambda r: r.sin())(x)


@program
def func_call():
    lin = linear()

    def forward(self, x):
        return torch.func.functional_call(
            self.a, {"weight": self.a.weight * 2, "bias": self.a.bias}, (x,)
        )

    return export_of(module(forward, a=lin), (randn(4, 8),))


@program
def autograd_function():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin() * 2

        @staticmethod
        def backward(ctx, g):
            return g

    def forward(self, x):
        return Fn.apply(self.a(x))

    return export_of(module(forward, a=linear()), (randn(4, 8),), train=True)


@program
def autograd_function_strict():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin() * 2

        @staticmethod
        def backward(ctx, g):
            return g

    def forward(self, x):
        return Fn.apply(self.a(x))

    return export_of(module(forward, a=linear()), (randn(4, 8),), train=True, strict=True)


@method(randn(4, 8))
def autograd_grad(self, x):
    with torch.enable_grad():
        y = x.detach().clone().requires_grad_(True)
        (g,) = torch.autograd.grad((y * y).sum(), y)
    return g


@method(randn(4, 8), train=True)
def autograd_functional(self, x):
    return torch.autograd.functional.vjp(lambda y: (y * y).sum(), x)[1]


@program
def joint_backward():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.l = nn.Linear(8, 4)

        def forward(self, x, y):
            return nn.functional.mse_loss(self.l(x), y)

    ep = export(Net(), (randn(2, 8), randn(2, 4)))
    return _export_forward_backward(ep)


@method(randn(2, 8), train=True, a=linear())
def grads_left(self, x):
    return self.a(x)


@method(randn(2, 8).requires_grad_(True), train=True, a=linear())
def input_requires_grad(self, x):
    return self.a(x)


@method(randn(4), train=True, c=torch.zeros(4))
def no_grad_mutates(self, x):
    with torch.no_grad():
        self.c.add_(x)
    return x * 2


@method(randn(4), train=True)
def no_grad_mutates_input(self, x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


@method(randn(4), c=torch.zeros(4))
def autocast_mutates(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        self.c.add_(x)
    return x * 2
