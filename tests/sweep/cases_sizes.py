"""Dynamic shapes, data-dependent sizes, and computations with sizes."""

import torch
from torch import nn
from torch.export import Dim

from tests.sweep.cases import export_of, linear, method, module, program, randn


@method(randn(4, 8))
def out_item(self, x):
    return x.sum().item()


@method(torch.arange(4))
def out_item_int(self, x):
    return x.sum().item() + 1


@method(randn(4))
def item_bool(self, x):
    return (x.sum() > 0).item()


@method(randn(4), torch.tensor(3))
def item_size(self, x, n):
    k = n.item()
    torch._check(k >= 1)
    torch._check(k <= 8)
    return torch.zeros(k) + x.sum()


@method(randn(8, 2), torch.tensor(3))
def item_slice(self, x, n):
    k = n.item()
    torch._check_is_size(k)
    torch._check(k < 8)
    return x.narrow(0, k, 1)


@method(randn(4, 2))
def nonzero(self, x):
    return x.nonzero()


@method(randn(4, 2))
def nonzero_bound(self, x):
    y = x.nonzero()
    torch._check(y.shape[0] <= 8)
    return y + 1


@method(randn(4, 2))
def masked_select(self, x):
    y = torch.masked_select(x, x > 0)
    torch._check(y.shape[0] <= 8)
    return y * 2


@method(randn(4, 2), torch.tensor([1, 2, 3, 2]))
def repeat_interleave(self, x, r):
    return torch.repeat_interleave(x, r, dim=0, output_size=8)


@method(randn(4, 2), torch.tensor([1, 2]))
def tolist(self, x, n):
    a, b = n.tolist()
    torch._check_is_size(a)
    torch._check_is_size(b)
    torch._check(a <= 4)
    torch._check(b <= 4)
    return torch.ones(a, b) * x.sum()


@method(torch.tensor([1, 2, 2]))
def unique_(self, x):
    return torch.unique(x)


@method(randn(4, 2), torch.tensor(2), dynamic={"x": {0: Dim("n", min=2, max=9)}, "n": None})
def unbacked_backed(self, x, n):
    k = n.item()
    torch._check_is_size(k)
    torch._check(k <= x.shape[0])
    return x[:k] * 2


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def asserts(self, x):
    torch._check(x.shape[0] > 1)
    torch._assert(True, "m")
    torch._assert_async(x.sum() > -1e9)
    return x + 1


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_division(self, x):
    return x + x.shape[0] / 3


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_power(self, x):
    return x * x.shape[0] ** 2


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_modulo(self, x):
    return x + x.shape[0] % 3


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_floor(self, x):
    return x + x.shape[0] // 2


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_sqrt(self, x):
    return x * torch.sym_sqrt(x.shape[0])


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_min(self, x):
    return x * torch.sym_min(x.shape[0], 5)


@method(randn(4, 2), dynamic={"x": {0: Dim("n", min=2, max=9)}})
def sym_choice(self, x):
    return x * torch.sym_ite(x.shape[0] > 3, 1, 2)


@method(
    randn(2, 2),
    randn(3, 2),
    randn(4, 2),
    randn(5, 2),
    dynamic=tuple({0: Dim(f"n{i}", min=2, max=9)} for i in range(4)),
)
def sym_sum(self, a, b, c, d):
    return torch.cat([a, b, c, d]).view(-1)


@method(randn(1, 1, 6, 6), dynamic={"x": {2: Dim("n", min=2, max=9)}})
def interpolate_dyn(self, x):
    return nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear")


@program
def derived():
    n = Dim("n", min=1, max=5)

    def forward(self, x):
        return x.view(-1, 2)

    return export_of(module(forward), (randn(6),), dynamic={"x": {0: 2 * n}})


@program
def derived_linked():
    n = Dim("n", min=2, max=5)

    def forward(self, x, y):
        return x + y[1:]

    return export_of(module(forward), (randn(4), randn(5)), dynamic={"x": {0: n}, "y": {0: n + 1}})


@program
def derived_48k():
    k = Dim("k", min=2, max=50)

    def forward(self, x):
        return self.c(x)

    m = module(forward, c=nn.Conv1d(1, 4, 23, stride=48))
    return export_of(m, (randn(1, 1, 48 * 5 - 25),), dynamic={"x": {2: 48 * k - 25}})


@method(randn(6, 8), dynamic={"x": {0: Dim.AUTO}}, a=linear())
def auto_dims(self, x):
    return self.a(x).view(x.shape[0], 2, -1)


@method(randn(6, 8), dynamic={"x": {0: Dim.DYNAMIC}})
def unbounded(self, x):
    return x * 2


@method(randn(6, 8), dynamic={"x": {0: Dim("n", min=0, max=9)}})
def dim_zero(self, x):
    return x * 2


@method(randn(3, 1, 8), l=nn.GRU(8, 4))
def gru_dyn(self, x):
    return self.l(x)


@method(randn(4), dynamic={"x": {0: Dim.AUTO}}, prefer_deferred_runtime_asserts_over_guards=True)
def prefer_deferred(self, x):
    if x.shape[0] % 2 == 0:
        return x + 1
    return x - 1


@program
def conv_dyn_strict():
    return export_of(
        nn.Conv1d(2, 3, 3).eval(),
        (randn(1, 2, 20),),
        dynamic={"input": {2: Dim("n", min=5, max=50)}},
        strict=True,
    )


@program
def dim_hints_named():
    b = Dim("batch", min=1, max=8)

    def forward(self, x, d):
        return x @ d["w"]

    return export_of(
        module(forward),
        (randn(2, 4), {"w": randn(4, 2)}),
        dynamic={"x": {0: b, 1: None}, "d": {"w": {1: b}}},
    )


@method(randn(3, 4), dynamic={"x": {0: Dim("a", min=2, max=9), 1: Dim("b", min=2, max=9)}})
def two_symbols_product(self, x):
    return x.reshape(-1), x.shape[0] * x.shape[1]


@program
def derived_chain():
    n = Dim("n", min=2, max=8)

    def forward(self, x, y, z):
        return x + y[::2] + z[1::4][: x.shape[0]]

    return export_of(
        module(forward),
        (randn(4), randn(8), randn(17)),
        dynamic={"x": {0: n}, "y": {0: 2 * n}, "z": {0: 4 * n + 1}},
    )


@program
def shared_dims_across():
    n = Dim("n", min=2, max=8)

    def forward(self, x, y):
        return x + y

    return export_of(module(forward), (randn(4), randn(4)), dynamic={"x": {0: n}, "y": {0: n}})
