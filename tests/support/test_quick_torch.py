"""What quantizers look for is exported once, and again where anything about it is another."""

import operator

import pytest
import torch
from torch.fx import symbolic_trace

from tests.support.quick_torch import remember_patterns

ONE = (torch.zeros(1),)


class Pattern(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def pattern(operation=operator.add, scale=2, keyword=None):
    def compute(x, by=keyword):
        return operation(x, scale)

    return Pattern(compute)


def local_pattern(operation):
    class Local(torch.nn.Module):
        def forward(self, x):
            return operation(x, x)

    return Local()


def holding(tensor):
    module = pattern()
    module.register_buffer("held", tensor)
    return module


@pytest.fixture
def remembering():
    """The function, and what it has exported."""
    exported = []

    def export(pattern, inputs, is_cuda=False, **kwargs):
        exported.append(pattern)
        return symbolic_trace(lambda x: x + len(exported))

    return remember_patterns(export), exported


@pytest.mark.parametrize("make", [pattern, lambda: local_pattern(operator.add)])
def test_an_equal_pattern_is_not_exported_again(make, remembering):
    export, exported = remembering
    for value in (0.0, 1.0):
        made = export(make(), (torch.full((1,), value),))
        assert str(made.code) == str(symbolic_trace(lambda x: x + 1).code)
        made.graph.erase_node(made.graph.output_node())  # it is a copy
    assert len(exported) == 1


@pytest.mark.parametrize(
    "others",
    [
        (pattern(scale=3), ONE),
        (pattern(scale=2.0), ONE),
        (pattern(scale=True), ONE),
        (pattern(operator.sub), ONE),
        (pattern(torch.nn.functional.relu), ONE),
        (pattern(keyword=1), ONE),
        (pattern().eval(), ONE),
        (local_pattern(operator.sub), ONE),
        (pattern(), (torch.zeros(2),)),
        (pattern(), (torch.zeros(1, dtype=torch.int8),)),
        (pattern(), (1,)),
        (pattern(), ONE, True),
    ],
)
def test_another_one_is(others, remembering):
    export, exported = remembering
    for known in (pattern(), local_pattern(operator.add)):
        export(known, ONE)
    export(*others)
    assert len(exported) == 3


def test_other_keywords_are_exported_again(remembering):
    export, exported = remembering
    for inputs in ({}, {"scale": torch.ones(1)}, {"scale": torch.ones(2)}):
        export(pattern(), ONE, **inputs)
    assert len(exported) == 3


@pytest.mark.parametrize(
    "unknown", [pattern(scale=torch.ones(1)), holding(torch.ones(1)), pattern(scale=object())]
)
def test_a_pattern_that_holds_values_is_exported_each_time(unknown, remembering):
    export, exported = remembering
    for _ in range(2):
        export(unknown, ONE)
    assert len(exported) == 2
