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
        return self.model.cache * x


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
