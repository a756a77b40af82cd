"""The square root that refits compute has the bytes of torch's, and doesn't need torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from pipeline.compile.inspect.arrays import UnknownValueError
from pipeline.features.refit import square_root
from pipeline.features.refit.square_root import sqrt

needs_mkl = pytest.mark.skipif(
    not torch.backends.mkl.is_available(), reason="this torch has no MKL"
)
SIZES = [0, 1, 2, 7, 8, 9, 17, 63, 64, 65, 1000, 2047, 2049, 32769, 100_003]
DTYPES = {np.float32: np.uint32, np.float64: np.uint64}


def sets(dtype):
    """Yield values as they are, and values of any bits: denormals, infinities and NaNs, too."""
    random = np.random.default_rng(0)
    for size in SIZES:
        yield (10.0 ** random.uniform(-30, 30, size)).astype(dtype)
        bits = DTYPES[dtype]
        yield random.integers(0, np.iinfo(bits).max, size, bits).view(dtype)


def by_torch(values):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = torch.empty(values.shape, dtype=torch.from_numpy(values).dtype)
        taken.numpy()[...] = values
        return torch.sqrt(taken).numpy()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_mkl", [True, False])
def test_it_is_torch_s(monkeypatch, dtype, has_mkl):
    if not has_mkl:
        monkeypatch.setattr(square_root, "_load_functions", dict)
    for values in sets(dtype):
        assert sqrt(values).tobytes() == by_torch(values).tobytes(), len(values)


def test_shapes_are_kept():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2]
    assert sqrt(values).shape == (2, 2, 4)
    assert np.array_equal(sqrt(values)[1], sqrt(np.ascontiguousarray(values[1])))
    assert sqrt(np.array(4, np.float32)) == 2


@needs_mkl
def test_another_square_root_of_torch_leads_to_no_recipe(monkeypatch):
    monkeypatch.setattr(square_root, "_sqrt_of_torch", np.sqrt)
    square_root._is_torch_s.cache_clear()
    try:
        with pytest.raises(UnknownValueError, match="torch's square root, which is not MKL's"):
            sqrt(np.ones(1, np.float32))
    finally:
        square_root._is_torch_s.cache_clear()


ALONE = """
import sys
import numpy as np
from pipeline.features.refit.square_root import sqrt
values = np.random.default_rng(1).random(1000)
sys.stdout.buffer.write(sqrt(values).tobytes())
assert "torch" not in sys.modules
"""


@needs_mkl
def test_torch_is_not_imported():
    roots = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, check=True).stdout
    assert roots == by_torch(np.random.default_rng(1).random(1000)).tobytes()
