"""Integers that only index tables take all their rows, whatever the examples hold."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F

from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import Generator, fill_large, fill_zeros, generate_inputs

TOKENS = torch.tensor([[3, 4, 5]])


class Tables(nn.Module):
    def __init__(self, look_up):
        super().__init__()
        self.look_up = look_up
        self.register_buffer("table", torch.randn(100, 4))
        self.register_buffer("small", torch.randn(20, 4))

    def forward(self, tokens):
        return self.look_up(self, tokens)


def program(look_up, shapes=None):
    return export(Tables(look_up), (TOKENS,), dynamic_shapes=shapes and {"tokens": shapes})


def ends(look_up, shapes=None):
    generated = generate_inputs(program(look_up, shapes), 60, 0)
    values = torch.cat([inputs.args[0].flatten() for inputs in generated])
    return values.min().item(), values.max().item()


LOOKUPS = {
    "embedding": (lambda m, i: F.embedding(i, m.table), 90),
    "index": (lambda m, i: m.table[i], 90),
    "view": (lambda m, i: F.embedding(i.view(-1), m.table) + i.shape[1], 90),
    "cast": (lambda m, i: F.embedding(i.int(), m.table), 90),
    "two tables": (lambda m, i: F.embedding(i, m.table) + F.embedding(i, m.small), 18),
}


@pytest.mark.parametrize(("look_up", "least"), LOOKUPS.values(), ids=LOOKUPS)
def test_integers_reach_all_rows(look_up, least):
    low, high = ends(look_up)
    assert low < 3 and least < high < (20 if least < 20 else 100)


def test_sizes_may_be_dynamic():
    assert ends(LOOKUPS["embedding"][0], {1: Dim("length", min=2, max=8)})[1] > 90


OTHERS = {
    "mask": lambda m, i: F.embedding(i, m.table) * (i != 0).unsqueeze(-1),
    "amount": lambda m, i: F.embedding(i, m.table) * i.unsqueeze(-1),
    "offset": lambda m, i: F.embedding(i + 50, m.table),
    "column": lambda m, i: m.table[:, i.clamp(max=3)],
    "columns": lambda m, i: m.table.index_select(1, i.view(-1) - 3),
    "output": lambda m, i: (F.embedding(i, m.table), i + 1),
}


@pytest.mark.parametrize("look_up", OTHERS.values(), ids=OTHERS)
def test_integers_with_other_uses_stay_within_the_examples(look_up):
    assert ends(look_up) == (3, 5)


def test_zeros_and_large_values_are_the_first_and_the_last_row():
    generator = Generator(program(LOOKUPS["embedding"][0]), 0)
    assert generator.set(0, fill=fill_zeros).args[0].tolist() == [[0, 0, 0]]
    large = generator.set(0, fill=lambda *given: fill_large(1, *given))
    assert large.args[0].tolist() == [[99, 99, 99]]


def test_without_examples_too():
    bare = program(LOOKUPS["embedding"][0])
    bare._example_inputs = None
    values = torch.cat([inputs.args[0] for inputs in generate_inputs(bare, 60, 0)])
    assert values.max() > 90
    examples = [InputSet((TOKENS,), {}, "example 0")]
    assert Generator(bare, 0, examples).set(0, fill=fill_zeros).args[0].max() == 0
