"""New weights that are NaNs: each keeps its sign and payload, or the method is compiled."""

import pytest
import torch

from pipeline.compile.inspect.arrays import UnknownValueError
from tests.features.refit.test_recipes import same

# Quiet and signaling NaNs of both signs, with payloads that casts to 16 bits lose.
NANS = [0x7FC00000, -0x400000, 0x7FC00001, 0x7F800001, -0x7FFFFF, 0x7FFFDFFF, -1]

COPIED = {
    "clone": lambda x: x.clone(),
    "turned": lambda x: x.transpose(0, 1).contiguous(),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 1)),
}
COMPUTED = {
    "sum": lambda x: x + x,
    "product": lambda x: x * 3.0,
    "quotient": lambda x: 1.0 / x,
    "negated": torch.neg,
    "absolute": torch.abs,
    "root": torch.sqrt,
    "least": lambda x: x.min(),
    "as doubles": lambda x: x.to(torch.float64),
    "as halves": lambda x: x.to(torch.float16),
    "as bfloat16": lambda x: x.to(torch.bfloat16),
    "from bfloat16": lambda x: x.view(torch.bfloat16).to(torch.float32),
}


def weights():
    numbers = torch.ones(21, 3, dtype=torch.int32)
    numbers[:7, 1] = torch.tensor(NANS, dtype=torch.int32)
    return numbers.view(torch.float32)


@pytest.mark.parametrize("name", COPIED)
def test_a_nan_that_is_copied_is_exact(name):
    same(COPIED[name], weights())


@pytest.mark.parametrize("name", COMPUTED)
def test_a_nan_that_is_computed_is_not_refitted(name):
    with pytest.raises(UnknownValueError, match="a NaN that is computed from constants"):
        same(COMPUTED[name], weights())


def test_a_number_that_becomes_a_nan_is_not_refitted():
    with pytest.raises(UnknownValueError, match="a NaN that is computed from constants"):
        same(torch.sqrt, -torch.ones(3))
