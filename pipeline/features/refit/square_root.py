"""The square root as torch computes it, without importing torch.

torch on x86 calls Intel's MKL, whose results are not always the nearest number. MKL is part of
torch's own library, which loads in a tenth of the time of `import torch`. Source:
`aten/src/ATen/cpu/vml.h` of torch 2.13.

A recipe is learned where torch is imported. There the function is compared with torch's, so that a
torch that computes square roots in another way leads to no recipe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from ctypes import CDLL, c_int, c_int64, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pipeline.compile.inspect.arrays import Array, UnknownValueError

_ALIGNMENT = 64  # bytes, as torch aligns its memory; MKL's results may depend on it
# VML_HA (high accuracy), VML_FTZDAZ_OFF (keep denormals) and VML_ERRMODE_IGNORE.
_MODE = 0x2 | 0x140000 | 0x100
# Values to compare; MKL rounds 17 % of those in float32, and 1 % in float64, unlike IEEE 754.
_PROBES = 10_000
_FUNCTIONS = {"float32": "vmsSqrt", "float64": "vmdSqrt"}
Function = Callable[[int, int, int, int], None]


def sqrt(values: Array) -> Array:
    """Return the square roots that `torch.sqrt` computes in one thread, in a new array.

    Args:
        values: float32 or float64, of any shape.

    Raises:
        UnknownValueError: torch is imported, and computes them in another way.
    """
    if values.dtype.name not in _load_functions():
        return _sqrt_of_torch(values)
    if "torch" in sys.modules and not _is_torch_s(values.dtype.name):
        raise UnknownValueError("torch's square root, which is not MKL's")
    return _sqrt_of_mkl(values)


@cache
def _is_torch_s(dtype: str) -> bool:
    """Return whether MKL and torch agree on values of all sizes."""
    random = np.random.default_rng(0)
    values = (10.0 ** random.uniform(-30, 30, _PROBES)).astype(dtype)
    return _sqrt_of_mkl(values).tobytes() == _sqrt_of_torch(values).tobytes()


def _sqrt_of_mkl(values: Array) -> Array:
    function = _load_functions()[values.dtype.name]
    taken, roots = _empty_like(values), _empty_like(values)
    taken[...] = values
    function(values.size, taken.ctypes.data, roots.ctypes.data, _MODE)
    return roots


@cache
def _load_functions() -> Mapping[str, Function]:
    """Return MKL's functions by dtype; none if torch was built without MKL."""
    spec = find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return {}
    try:
        # It finds the libraries that it needs in its own folder.
        library = CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_cpu.so"))
        library.MKL_Set_Num_Threads_Local(1)
        functions = {dtype: library[name] for dtype, name in _FUNCTIONS.items()}
    except (OSError, AttributeError):
        return {}
    for function in functions.values():
        function.argtypes = [c_int, c_void_p, c_void_p, c_int64]
        function.restype = None
    return functions


def _empty_like(values: Array) -> Array:
    """Return an array of this shape and dtype, aligned like torch's memory."""
    memory = np.empty(values.nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    aligned: Array = memory[begin : begin + values.nbytes].view(values.dtype)
    return aligned.reshape(values.shape)


def _sqrt_of_torch(values: Array) -> Array:
    import torch

    torch.set_num_threads(1)
    # Aligned as it was in torch.
    aligned = torch.empty(values.shape, dtype=getattr(torch, values.dtype.name))
    aligned.numpy()[...] = values
    roots: Array = torch.sqrt(aligned).numpy()
    return roots
