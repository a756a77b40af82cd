"""The bounds of sizes are computed once for each expression and each range of its symbols."""

import pytest
import sympy
from executorch.exir import sym_util
from torch._guards import TracingContext, tracing
from torch.utils._sympy.value_ranges import ValueRanges

from pipeline.features.speedups.sizes import make_bounds

ROWS, COLUMNS = sympy.symbols("rows columns", integer=True, positive=True)
RANGES = {ROWS: ValueRanges(2, 8), COLUMNS: ValueRanges(3, 16), sympy.Symbol("z"): None}


@pytest.fixture
def asked():
    return []


@pytest.fixture
def bound(asked):
    """A `bound_sympy` that lists the expressions that torch computes."""
    original = sym_util.bound_sympy

    def compute(expression, ranges):
        asked.append(expression)
        return original(expression, ranges)

    return make_bounds(compute)


@pytest.mark.parametrize("size", [ROWS, 2 * ROWS * COLUMNS + 1, ROWS // 2, sympy.Integer(7)])
def test_bounds_are_kept(size, bound, asked):
    expected = sym_util.bound_sympy(size, RANGES)
    assert [bound(size, RANGES), bound(size + 0, dict(RANGES))] == [expected, expected]
    assert asked == [size]


def test_a_narrower_range_gives_other_bounds(bound, asked):
    assert bound(2 * ROWS, RANGES).upper == 16
    assert bound(2 * ROWS, {**RANGES, ROWS: ValueRanges(2, 4)}).upper == 8
    assert bound(2 * ROWS, {**RANGES, COLUMNS: ValueRanges(3, 4)}).upper == 16
    assert len(asked) == 2


def test_a_trace_has_ranges_of_its_own(bound, asked):
    with tracing(TracingContext(None)):
        assert bound(ROWS, RANGES).upper == bound(ROWS, RANGES).upper == 8
    assert len(asked) == 2
