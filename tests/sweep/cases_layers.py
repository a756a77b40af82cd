"""Layers of torch, from BatchNorm to attention."""

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.sweep.cases import export_of, method, program, randn


@method(randn(4))
def rng(self, x):
    return x + torch.rand(4), torch.randn_like(x), torch.randint(0, 5, (2,))


@method(randn(4))
def dropout_train(self, x):
    return nn.functional.dropout(x, 0.5, training=True)


@program
def bn_train():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.b(x)

    return export_of(M().train(), (randn(4, 8),))


@program
def bn_eval():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.c = nn.Conv2d(3, 4, 3)
            self.b = nn.BatchNorm2d(4)

        def forward(self, x):
            return self.b(self.c(x))

    return export_of(M().eval(), (randn(1, 3, 8, 8),))


@method(randn(3, 1, 8), (randn(2, 1, 4), randn(2, 1, 4)), l=nn.LSTM(8, 4, 2))
def lstm(self, x, h):
    return self.l(x, h)


@method(randn(1, 4, 8), l=nn.MultiheadAttention(8, 2, batch_first=True))
def mha(self, x):
    return self.l(x, x, x)


@method(*(randn(1, 2, 4, 8),) * 3)
def sdpa(self, q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@method(*(randn(1, 2, 4, 8),) * 3)
def sdpa_ctx(self, q, k, v):
    with sdpa_kernel([SDPBackend.MATH]):
        return nn.functional.scaled_dot_product_attention(q, k, v)


@method(torch.tensor([1, 2, 3]), torch.tensor([0, 2]), e=nn.EmbeddingBag(10, 4))
def embedding_bag(self, x, o):
    return self.e(x, o)


@method(randn(2, 3, 4), randn(2, 4, 5))
def einsum(self, x, y):
    return torch.einsum("bij,bjk->bik", x, y)


@method(randn(4, 2), torch.tensor([0, 1]), randn(2, 2))
def index_put(self, x, i, v):
    return x.index_put((i,), v), x[i], x[:, None]
