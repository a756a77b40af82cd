"""One tensor of a model under several names, which only the exporter's process can detect."""

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.exporters.renamed_state import find_renamed_state, list_buffers
from pipeline.program.eager import describe_used_buffers

X = torch.ones(2, 3)


class Cache(nn.Module):
    def __init__(self, changes=True, persistent=True):
        super().__init__()
        self.changes = changes
        self.register_buffer("cache", torch.zeros(2, 3), persistent=persistent)

    def forward(self, x):
        return self.cache.add_(x) * 1 if self.changes else self.cache + x


class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.cache.sum() * x


def find(first, second):
    programs = {"prefill": export(first, (X,)), "decode": export(second, (X,))}
    buffers = {method: list_buffers(program) for method, program in programs.items()}
    return find_renamed_state(buffers, lambda method: describe_used_buffers(programs[method]))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_of_two_names_is_found(persistent):
    cache = Cache(persistent=persistent)
    assert find(cache, Around(cache)) == {"prefill": {"cache": 0}, "decode": {"model.cache": 0}}


def test_other_buffers_are_not():
    cache = Cache()
    assert find(cache, Around(Cache())) == {}  # another tensor
    assert find(Around(cache), Around(cache)) == {}  # a single name
    constant = Cache(changes=False)
    assert find(constant, Around(constant)) == {}


def test_a_second_name_in_one_method_is_harmless():
    cache = Cache()
    both = Around(cache)
    both.alias = cache
    assert find(both, Around(cache)) == {}


class Held(nn.Module):
    def __init__(self, cache, changes=False):
        super().__init__()
        self.changes = changes
        self.register_buffer("cache", cache)

    def forward(self, x):
        return (self.cache.add_(1) if self.changes else self.cache).sum() + x


@pytest.mark.parametrize(
    "part", [lambda t: t[1:], lambda t: t[:, 1], lambda t: t.view(2, 8), lambda t: t.T]
)
def test_views_of_one_tensor_are_found_whatever_their_names(part):
    cache = torch.zeros(4, 4)
    prefill, decode = Held(cache, changes=True), Held(part(cache))
    assert find(prefill, decode) == {"prefill": {"cache": 0}, "decode": {"cache": 0}}
    number = {"prefill": {"cache": 0}, "decode": {"model.cache": 0}}
    assert find(prefill, Around(decode)) == number


def test_a_buffer_that_another_method_holds_as_a_constant_is_found():
    class Constant(nn.Module):
        def __init__(self, cache):
            super().__init__()
            self.get = lambda: cache

        def forward(self, x):
            return self.get() * x

    cache = Cache()
    number = {"prefill": {"cache": 0}, "decode": {"lifted_tensor_0": 0}}
    assert find(cache, Constant(cache.cache)) == number
    assert find(cache, Constant(cache.cache.clone())) == {}
    still = Cache(changes=False)
    assert find(still, Constant(still.cache)) == {}


def test_views_that_do_not_overlap_are_different_buffers():
    keys, values = torch.zeros(3, 2, 4).unbind(1)  # they interleave
    assert find(Held(keys, changes=True), Around(Held(values))) == {}
    assert find(Held(keys, changes=True), Held(keys)) == {}


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex128]
)
def test_views_of_every_dtype_are_found(dtype):
    cache = torch.zeros(2, 3).to(dtype).conj()  # numpy has no such complex views
    buffers = {"prefill": {"cache": cache}, "decode": {"cache": cache[:1]}}
    used = {"cache": {"changed": True}}
    assert find_renamed_state(buffers, lambda method: used) == {
        "prefill": {"cache": 0},
        "decode": {"cache": 0},
    }
