"""Arguments and outputs of every kind: numbers, flags, nothing, keywords, unused ones."""

import torch
from torch.export import Dim

from tests.sweep.cases import method, randn


@method(randn(4, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}})
def out_symint(self, x):
    return x + 1, x.shape[0], x.shape[0] * 2 + 1


@method(randn(4, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}})
def out_symfloat(self, x):
    return x + 1, x.shape[0] / 2


@method(randn(4, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}})
def out_symbool(self, x):
    return x + 1, x.shape[0] > 5


@method(randn(4, 8))
def out_consts(self, x):
    return x + 1, None, 3, 2.5, True, "s", [x, 1]


@method(randn(4, 8))
def out_none(self, x):
    return None, x + 1


@method(randn(4, 8), c=torch.zeros(8))
def out_nothing(self, x):
    self.c.add_(x.sum(0))


@method(randn(4, 8))
def out_only_const(self, x):
    return 3


@method(randn(4, 8), 3, 2.5, None, True, "mode")
def in_consts(self, x, a, b=2.5, c=None, d=True, e="mode"):
    return x * a * b + (1 if d else 0) + (2 if e == "mode" else 3)


@method(randn(4, 8), float("inf"), float("-inf"))
def in_float_special(self, x, a, b):
    return x.clamp(min=b) * 2


@method(randn(4, 8), float("nan"))
def in_nan(self, x, a):
    return x * 2


@method(randn(4, 8), 5, dynamic={"x": None, "n": Dim.DYNAMIC})
def in_int_dynamic(self, x, n):
    return x[:, :3] * n


@method(randn(4, 8), 5, dynamic={"x": None, "n": Dim.AUTO})
def in_int_auto(self, x, n):
    return torch.narrow(x, 1, 0, n)


@method(randn(4, 8), kwargs={"y": randn(4, 8), "mask": None})
def kw_only(self, x, *, y, mask=None):
    return x + y


@method(randn(4, 8), kwargs={"z": randn(4, 8), "y": randn(4, 8)})
def kw_var(self, x, **kw):
    return x + kw["y"] * kw["z"]


@method(kwargs={"b": randn(4, 8), "a": randn(4, 8)})
def kw_order(self, *, a, b):
    return a - b


@method(randn(4, 8), randn(4, 8))
def var_args(self, *xs):
    return torch.cat(xs)


@method(randn(4), randn(4), torch.tensor(3))
def unused_input(self, x, y, z):
    return y + 1


@method(randn(4), {"a": [randn(2), None], "b": 3})
def unused_tree(self, x, d):
    return x + 1


@method(c=torch.ones(3))
def no_inputs(self):
    return self.c + 1


@method(randn(4))
def no_ops(self, x):
    return x


@method(randn(2), kwargs={"b": randn(2)})
def var_all(self, *a, **k):
    return a[0] + k["b"]


@method(randn(4, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}})
def symbool_more(self, x):
    return x.shape[0] > 5, {"b": x.shape[0] == 4, "f": x.shape[0] * 0.5, "t": x}


@method(randn(4), torch.tensor(3.0))
def item_float(self, x, n):
    return x * n.item()
