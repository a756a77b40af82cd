"""Frees memory while torchao quantizes weights.

Otherwise two kinds would be kept for nothing: the pages of the float weights, which are mapped, and
holes left by intermediate values between the results. A worker took 1,321 MiB to quantize a decoder
of 0.12 B parameters without this, and takes 633 MiB with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from mmap import PAGESIZE
from typing import Any

import numpy
from torch import Tensor
from torchao.quantization.quantize_.workflows.intx import intx_unpacked_to_int8_tensor

from pipeline.program.patching import wrapped
from pipeline.run.worker_process import return_free_memory

_DONT_NEED = 4  # MADV_DONTNEED of `madvise`
_ENTRY = numpy.dtype("=u8")  # the kernel's entry for a page
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_TRIMMED_EVERY = 8  # weights: about a decoder layer


@contextmanager
def releasing_floats() -> Iterator[None]:
    """Free the memory of each float weight as soon as torchao has quantized it in this context."""
    numbers = count(1)

    def quantize(
        quantize_affine: Callable[..., Tensor],
        weight: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        quantized = quantize_affine(weight, *args, **kwargs)
        drop_mapped_pages(weight.data_ptr(), weight.nbytes)
        if next(numbers) % _TRIMMED_EVERY == 0:
            return_free_memory()
        return quantized

    with wrapped(intx_unpacked_to_int8_tensor, "quantize_affine", quantize):
        yield


def drop_mapped_pages(address: int, size: int) -> None:
    """Drop the pages of a mapped file that lie within `size` bytes from `address`.

    Reading a dropped page reads the file again. So if any page was written to, all pages are kept,
    as is memory of any other kind.
    """
    begin = -(-address // PAGESIZE) * PAGESIZE
    length = (address + size) // PAGESIZE * PAGESIZE - begin
    with suppress(OSError, AttributeError):  # not on Linux
        if length > 0 and _is_unwritten(begin, length):
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(begin), ctypes.c_size_t(length), _DONT_NEED
            )


def _is_unwritten(begin: int, length: int) -> bool:
    """Return whether no page in memory differs from its file.

    See the kernel's Documentation/admin-guide/mm/pagemap.rst.
    """
    size = length // PAGESIZE * _ENTRY.itemsize
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(begin // PAGESIZE * _ENTRY.itemsize)
        content = pagemap.read(size)
    if len(content) < size:
        return False
    entries = numpy.frombuffer(content, _ENTRY)
    is_held = entries & (_PRESENT | _SWAPPED) != 0
    is_of_file = entries & _OF_FILE != 0
    return bool(numpy.all(is_of_file[is_held]))
