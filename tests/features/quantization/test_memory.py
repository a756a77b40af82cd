"""Released memory, as the kernel counts it."""

from __future__ import annotations

import ctypes
import re
import sys
from mmap import ACCESS_COPY, MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from pathlib import Path

import pytest
import torch
from torchao.quantization.quantize_.workflows import IntxUnpackedToInt8Tensor

from pipeline.features.quantization.memory import drop_mapped_pages, releasing_floats
from pipeline.run.worker_process import return_free_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
PAGES = 16


def _address(mapped: mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def _resident(address: int) -> int:
    """Return the number of resident pages in the mapping at an address."""
    text = Path("/proc/self/smaps").read_text()
    (size,) = re.findall(rf"^{address:x}-[^\n]+\n(?:[A-Z][^\n]*\n)*?Rss: +(\d+) kB", text, re.M)
    return int(size) * 1024 // PAGESIZE


def test_whole_pages_of_a_file_are_dropped_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    content = bytes(range(256)) * (PAGES * PAGESIZE // 256)
    path.write_bytes(content)
    with path.open("rb") as file:
        mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)
    address = _address(mapped)
    assert mapped[:] == content and _resident(address) == PAGES
    # From inside the second page to inside the last one.
    drop_mapped_pages(address + PAGESIZE + 1, (PAGES - 2) * PAGESIZE)
    assert _resident(address) == PAGES - (PAGES - 3)
    assert mapped[:] == content


def test_pages_that_were_written_to_stay(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(PAGES * PAGESIZE))
    with path.open("rb") as file:
        mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)
    mapped[5 * PAGESIZE] = 1
    drop_mapped_pages(_address(mapped), len(mapped))
    assert mapped[5 * PAGESIZE] == 1


def test_floats_leave_memory_as_they_are_quantized(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    values = torch.linspace(-1, 1, PAGES * PAGESIZE // 4)
    path.write_bytes(values.numpy().tobytes())
    with path.open("rb") as file:
        mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)
    weight = torch.frombuffer(mapped, dtype=torch.float32).reshape(64, -1)
    with releasing_floats():
        quantized = IntxUnpackedToInt8Tensor.from_hp(weight, (1, 32), torch.int4)
    assert _resident(weight.data_ptr()) == 0
    expected = IntxUnpackedToInt8Tensor.from_hp(values.reshape(64, -1), (1, 32), torch.int4)
    assert quantized.qdata.equal(expected.qdata) and quantized.scale.equal(expected.scale)


def test_memory_of_no_file_is_left_as_it_is() -> None:
    anonymous = mmap(-1, PAGES * PAGESIZE, MAP_PRIVATE | MAP_ANONYMOUS)
    anonymous[:] = b"x" * len(anonymous)
    drop_mapped_pages(_address(anonymous), len(anonymous))
    assert anonymous[:] == b"x" * len(anonymous)


def _held() -> int:
    (kib,) = re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(kib) * 1024


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's")
def test_holes_below_memory_in_use_are_returned() -> None:
    size = 64 << 10  # less than glibc maps separately
    blocks = [bytearray(size) for _ in range(512)]
    blocks[:-1] = []
    before = _held()
    return_free_memory()
    assert before - _held() > 400 * size
    assert len(blocks) == 1
