"""Dtypes, layouts, empty tensors, and constants that are hard to serialize."""

import torch
from torch import nn

from tests.sweep.cases import export_of, method, program, randn


@program
def const_attr():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = torch.tensor([1.0, 2.0, 3.0, 4.0])

        def forward(self, x):
            return x + self.k

    return export_of(M(), (randn(4),))


@method(torch.tensor(2.0), torch.tensor(3.0))
def scalar_tensors(self, a, b):
    return a * b, a.sum(), torch.tensor(3.5) * a


@method(randn(4, 2), torch.zeros(0, 2))
def empty_tensors(self, x, e):
    return torch.cat([x, e]), e, e.sum(), torch.zeros(0, 3)


@method(randn(4, 2), c=torch.zeros(0, 2))
def empty_weights(self, x):
    return torch.cat([x, self.c])


@method(randn(4, 8), a=nn.Linear(8, 0))
def empty_linear(self, x):
    return self.a(x)


@method(
    torch.ones(2, dtype=torch.int8),
    torch.ones(2, dtype=torch.int16),
    torch.ones(2, dtype=torch.uint8),
    torch.ones(2, dtype=torch.float64),
    torch.ones(2, dtype=torch.bool),
    torch.ones(2, dtype=torch.float16),
    torch.ones(2, dtype=torch.bfloat16),
)
def dtypes_all(self, a, b, c, d, e, f, g):
    return a + 1, b + 1, c + 1, d + 1, e & e, f + 1, g + 1


@method(
    torch.ones(2, dtype=torch.uint16),
    torch.ones(2, dtype=torch.uint32),
    c=torch.ones(2, dtype=torch.uint16),
)
def dtype_unsigned(self, a, b):
    return a.to(torch.int32), b.view(torch.int32), self.c.to(torch.int32)


@method(torch.ones(2).to(torch.float8_e5m2), c=torch.ones(2).to(torch.float8_e4m3fn))
def dtype_f8(self, a):
    return a.to(torch.float32) + self.c.to(torch.float32)


@method(torch.ones(2, dtype=torch.complex64), c=torch.ones(2, dtype=torch.complex64))
def dtype_complex(self, a):
    return a * self.c


@method(torch.ones(2, 2), c=torch.ones(2, dtype=torch.complex64))
def complex_real(self, a):
    return torch.view_as_real(torch.view_as_complex(a) * self.c)


@method(randn(1, 64), w=torch.hann_window(16))
def stft(self, a):
    return torch.view_as_real(torch.stft(a, 16, 8, window=self.w, return_complex=True))


@method(randn(1, 64))
def fft(self, a):
    return torch.fft.rfft(a).abs()


@method(
    randn(1, 3, 8, 8).to(memory_format=torch.channels_last),
    c=nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
)
def channels_last(self, x):
    return self.c(x)


@method(
    randn(2, 8),
    w=torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).t().contiguous().t(),
)
def strided_weight(self, x):
    return x @ self.w


@method(randn(4, 8), w=torch.ones(1, 8).expand(4, 8))
def expanded_weight(self, x):
    return x + self.w


@method(randn(4, 8), w=torch.arange(32.0)[::4])
def stepped_weight(self, x):
    return x + self.w


@method(randn(4, 8), s=torch.eye(4).to_sparse())
def sparse_const(self, x):
    return torch.sparse.mm(self.s, x)


@method(randn(4))
def float_scalar_long(self, x):
    return x * 1e-45 + 1e308 + float(2**53 + 1)


@method(torch.tensor([1]))
def big_int(self, x):
    return x + 2**62


@method(randn(4))
def inf_consts(self, x):
    return torch.where(x > 0, x, float("-inf")).clamp(max=float("inf")), torch.full(
        (2,), float("nan")
    )
