"""Control flow, attention, nested regions: operators that call functions."""

import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.out_dtype import out_dtype as as_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode as in_strict_mode
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.sweep.cases import export_of, linear, method, module, program, randn


@method(*(randn(1, 2, 16, 16),) * 3)
def flex(self, q, k, v):
    return flex_attention(q, k, v)


@method(*(randn(1, 2, 16, 16),) * 3)
def flex_score(self, q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s, -1e9))


@program
def flex_mask():
    bm = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 16, 16, device="cpu", BLOCK_SIZE=16)

    def forward(self, q, k, v):
        return flex_attention(q, k, v, block_mask=bm)

    return export_of(module(forward), (randn(1, 2, 16, 16),) * 3)


@method(*(randn(1, 2, 16, 16),) * 3, strict=True)
def flex_strict(self, q, k, v):
    return flex_attention(q, k, v)


@method(*(torch.ones(4, 4, dtype=torch.int8),) * 2)
def out_dtype(self, x, y):
    return as_dtype(torch.ops.aten.mm.default, torch.int32, x, y)


@method(*(torch.ones(4, 4, dtype=torch.int8),) * 2)
def out_dtype_mul(self, x, y):
    return as_dtype(torch.ops.aten.mul.Tensor, torch.int32, x, y) + 1


@program
def nested_compile():
    lin = linear()

    @torch.compiler.nested_compile_region
    def g(x):
        return torch.relu(x) + 1

    def forward(self, x):
        return g(g(self.lin(x)))

    return export_of(module(forward, lin=lin), (randn(2, 8),))


@program
def nested_compile_strict():
    lin = linear()

    @torch.compiler.nested_compile_region
    def g(x):
        return torch.relu(x) + 1

    def forward(self, x):
        return g(g(self.lin(x)))

    return export_of(module(forward, lin=lin), (randn(2, 8),), strict=True)


@program
def nested_region_module():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = linear()

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return torch.relu(self.l(x))

    b1, b2 = Block(), Block()

    def forward(self, x):
        return self.b2(self.b1(x))

    return export_of(module(forward, b1=b1, b2=b2), (randn(2, 8),), strict=True)


@program
def nested_region_module_nonstrict():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = linear()

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return torch.relu(self.l(x))

    b1, b2 = Block(), Block()

    def forward(self, x):
        return self.b2(self.b1(x))

    return export_of(module(forward, b1=b1, b2=b2), (randn(2, 8),))


@method(randn(2, 8))
def cond_nested(self, x):
    def inner(y):
        return torch.cond(y.max() > 3, lambda z: z + 1, lambda z: z * 2, (y,))

    return torch.cond(x.sum() > 0, inner, lambda y: y - 1, (x,))


@method(randn(2, 8), randn(2, 8))
def cond_multi(self, x, y):
    return torch.cond(x.sum() > 0, lambda a, b: (a + b, a), lambda a, b: (a - b, a * b), (x, y))


@method(randn(3, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}})
def cond_symbool(self, x):
    return torch.cond(x.shape[0] > 4, lambda a: a + 1, lambda a: a - 1, (x,))


@method(torch.tensor(True), randn(3, 8), a=linear())
def cond_pred_in(self, p, x):
    return torch.cond(p, lambda a: self.a(a), lambda a: a - 1, (x,))


@method(randn(3, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}})
def cond_closed_sym(self, x):
    n = x.shape[0]
    return torch.cond(x.sum() > 0, lambda a: a * n, lambda a: a - 1, (x,))


@method(randn(3, 8), dynamic={"x": {0: Dim("n", min=2, max=16)}}, strict=True)
def cond_dynamic_strict(self, x):
    n = x.shape[0]
    return torch.cond(x.sum() > 0, lambda a: a * n, lambda a: a - 1, (x,))


@method(randn(3, 8), c=torch.zeros(8))
def cond_buffer(self, x):
    y = torch.cond(x.sum() > 0, lambda a: a + self.c, lambda a: a - self.c, (x,))
    self.c.add_(1)
    return y


@method(randn(3, 8), randn(8), a=linear())
def map_two(self, x, y):
    return map_rows(lambda r, y: (self.a(r) + y, r * 2), x, y)


@method(randn(3, 8))
def map_dict(self, x):
    return map_rows(lambda r: {"a": r["u"] + 1, "b": r["v"] * 2}, {"u": x, "v": x + 1})


@method(randn(3, 8))
def map_in_cond(self, x):
    return torch.cond(x.sum() > 0, lambda a: map_rows(lambda r: r + 1, a), lambda a: a - 1, (x,))


@method(randn(3, 8))
def scan_add(self, x):
    return scan(lambda c, r: (c + r, c * r), x[0].clone(), x)


@method(randn(3, 8))
def scan_reverse(self, x):
    return scan(lambda c, r: (c + r, c * r), x[0].clone(), x, reverse=True)


@method(randn(3, 8))
def scan_tree(self, x):
    return scan(
        lambda c, r: ({"s": c["s"] + r, "p": c["p"] * 2}, (c["s"] * r,)),
        {"s": x[0].clone(), "p": x[1].clone()},
        x,
    )


@method(randn(4, 8))
def assoc_scan(self, x):
    return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")


@method(randn(4, 8))
def while_simple(self, x):
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))


@method(randn(4, 8))
def while_int(self, x):
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (0, x))


@method(randn(4, 8))
def strict_mode(self, x):
    return in_strict_mode(lambda y: (y + 1,), (x,))[0]


@method(randn(4, 8), randn(4, 8), strict=True)
def hints(self, x, y):
    def inner(x, y):
        return (torch.relu(x) + y,)

    return hints_wrapper(inner, (x, y), {}, hints={"outer_body": True})[0]


@method(randn(4), torch.tensor(True))
def item_bool_cond(self, x, n):
    return torch.where(n, x, -x), torch.cond(n, lambda x: x + 1, lambda x: x - 1, (x,))
