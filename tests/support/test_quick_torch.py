"""What quantizers look for is exported once, and again where anything about it is another; kernels
of composite operators are those that torch gives them, and are taken away again."""

import inspect
import operator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program
from torch.fx import symbolic_trace

from tests.support.quick_torch import remember_kernels, remember_patterns

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


# Kernels

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
LINEAR, SOFTMAX = torch.ops.aten.linear.default, torch.ops.aten.softmax.int


def tables():
    found = {}
    for op in (LINEAR, SOFTMAX):
        assert not op._dispatch_cache
        rules = op in op_implementations_dict
        found[op] = op.py_kernels.keys() | {rules}, op.py_kernels.get(COMPOSITE)
    return found


def keep(*args, kernel=None):
    return NotImplemented


TABLES = [
    {LINEAR: keep, SOFTMAX: keep},
    {LINEAR: operator.add, SOFTMAX: keep},
    {SOFTMAX: partial(keep, kernel=SOFTMAX)},
    {SOFTMAX: partial(keep, kernel=LINEAR)},
]


def test_operators_have_the_kernels_of_their_decompositions_and_lose_them():
    theirs = contextmanager(inspect.unwrap(exported_program._override_composite_implicit_decomp))
    given = []

    def recording(decompositions):
        given.append({*decompositions})
        return theirs(decompositions)

    ours = remember_kernels(recording)
    before = tables()
    for table in TABLES * 2:
        with theirs(table):
            expected = tables()
        torch.nn.functional.linear(torch.ones(1, 1), torch.ones(1, 1))
        with pytest.raises(ZeroDivisionError), ours(table):
            assert tables() == expected
            raise ZeroDivisionError
        assert tables() == before
    assert given[:4] == [{LINEAR, SOFTMAX}, {LINEAR}, {SOFTMAX}, {SOFTMAX}]
    assert given[4:] == [set()] * 4


def test_kernels_of_someone_else_are_kept():
    ours = remember_kernels(exported_program._override_composite_implicit_decomp)
    with ours(TABLES[0]):
        pass
    before = dict(LINEAR.py_kernels)
    LINEAR.py_kernels[torch._C.DispatchKey.Meta] = keep
    try:
        with ours(TABLES[0]):
            assert LINEAR.py_kernels[torch._C.DispatchKey.Meta] is keep
        assert LINEAR.py_kernels == {**before, torch._C.DispatchKey.Meta: keep}
    finally:
        LINEAR.py_kernels.clear()
        LINEAR.py_kernels.update(before)
