"""Dimensions are sorted as ExecuTorch sorts them, also if their strides contain sizes."""

import pytest
import torch
from executorch.exir.tensor import dim_order_from_stride
from hypothesis import given
from hypothesis import strategies as st
from torch.export import Dim, export

from pipeline.features.speedups.dim_orders import make_dim_order

order = make_dim_order(dim_order_from_stride)
strides = st.lists(st.integers(1, 64), max_size=6)


class Products(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.fixture(scope="module")
def dynamic_strides():
    """Strides of which two contain sizes."""
    size, length = Dim("size", min=2, max=32), Dim("length", min=2, max=64)
    dims = {"x": {1: size, 2: length}}
    program = export(Products(), (torch.ones(2, 4, 8, 3),), dynamic_shapes=dims)
    (node,) = [node for node in program.graph.nodes if node.op == "call_function"]
    return node.meta["val"].stride()


@given(strides)
def test_strides_that_are_numbers(strides):
    assert order(strides) == order(tuple(strides)) == dim_order_from_stride(strides)


@given(dims=st.permutations(range(4)), more=st.integers(1, 64))
def test_strides_with_sizes_in_them(dynamic_strides, dims, more):
    assert any(isinstance(step, torch.SymInt) for step in dynamic_strides)
    strides = [*(dynamic_strides[dim] for dim in dims), more]
    results = []
    for find in (order, dim_order_from_stride):
        try:
            results.append(find(strides))
        except Exception as error:
            results.append(type(error))
    assert results[0] == results[1]


def test_a_stride_of_zero_is_refused():
    with pytest.raises(RuntimeError, match="0 in strides is not supported"):
        order([4, 0, 1])
