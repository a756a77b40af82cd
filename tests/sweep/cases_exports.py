"""Programs after decompositions, with kept signatures, annotations and effects."""

import torch
import torch.fx.traceback as tb
from torch import nn

from tests.sweep.cases import export_of, linear, method, module, program, randn


@program
def decomposed():
    def forward(self, x):
        return self.a(x).relu()

    return export_of(module(forward, a=linear()), (randn(2, 8),)).run_decompositions()


@program
def core_aten():
    def forward(self, x):
        return self.a(x).softmax(-1)

    ep = export_of(module(forward, a=linear()), (randn(2, 8),))
    return ep.run_decompositions(torch.export.default_decompositions())


@program
def preserve_sig():
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = linear()

        def forward(self, x, y=None):
            return {"o": self.l(x)}

    b = B()

    def forward(self, x):
        return self.b(x, y=None)["o"] + 1

    return export_of(
        module(forward, b=b), (randn(2, 8),), strict=True, preserve_module_call_signature=("b",)
    )


@program
def preserve_sig_nonstrict():
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = linear()

        def forward(self, x, y=None):
            return {"o": self.l(x)}

    b = B()

    def forward(self, x):
        return self.b(x, y=None)["o"] + 1

    return export_of(module(forward, b=b), (randn(2, 8),), preserve_module_call_signature=("b",))


@method(randn(4))
def prims(self, x):
    return torch.ops.prims.broadcast_in_dim(x, (2, 4), (1,)) + 1


@program
def library_impl():
    @torch.library.custom_op("sweep::double", mutates_args=())
    def dbl(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @dbl.register_fake
    def _(x):
        return torch.empty_like(x)

    def forward(self, x):
        return torch.ops.sweep.double(x)

    return export_of(module(forward), (randn(4),))


@method(randn(4))
def print_warn(self, x):
    print("tracing")
    return x + 1


@method(randn(2))
def device_meta_like(self, x):
    return torch.zeros(2, device=x.device) + x


@program
def annotate():
    def forward(self, x):
        with tb.annotate({"stage": 1, "list": [1, 2]}):
            y = self.a(x)
        return y + 1

    with tb.preserve_node_meta():
        return export_of(module(forward, a=linear()), (randn(2, 8),))


@program
def training_state():
    def forward(self, x):
        return nn.functional.dropout(self.a(x), training=self.training)

    return export_of(module(forward, a=linear()).train(), (randn(2, 8),))


@method(randn(4))
def effects(self, x):
    torch.ops.aten._print("hi")
    return x + 1
