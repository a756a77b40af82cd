"""Composite operators get the kernels that torch gives them, and lose them again."""

import inspect
import operator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import exported_program

from pipeline.features.speedups.composite_kernels import make_override

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
LINEAR, SOFTMAX = torch.ops.aten.linear.default, torch.ops.aten.softmax.int


@pytest.fixture(autouse=True)
def _undispatched():
    """Forget how torch dispatched these operators in other tests."""
    for op in (LINEAR, SOFTMAX):
        op._dispatch_cache.clear()


def tables():
    found = {}
    for op in (LINEAR, SOFTMAX):
        assert not op._dispatch_cache
        rules = op in op_implementations_dict
        found[op] = op.py_kernels.keys() | {rules}, op.py_kernels.get(COMPOSITE)
    return found


def keep(*args, **kwargs):
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

    ours = make_override(recording, {})
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
    ours = make_override(exported_program._override_composite_implicit_decomp, {})
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
