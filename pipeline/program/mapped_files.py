"""Maps weight files into private memory, so that writing to it changes no file."""

from __future__ import annotations

import ctypes
import mmap
import re
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO
from weakref import WeakSet

_CAPABILITY_VERSION, _IPC_LOCK = 0x20080522, 1 << 14  # linux/capability.h
# Two structs of three words each: effective, permitted and inheritable.
_CAPABILITIES = struct.Struct("6I")
_maps: WeakSet[mmap.mmap] = WeakSet()
_REGION = re.compile(r"([0-9a-f]+)-[0-9a-f]+ ")
_UNCHANGED = re.compile(r"Anonymous: +0 kB")


def map_file(file: IO[bytes]) -> mmap.mmap:
    """Map a whole file. Raises OSError if that fails."""
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    _maps.add(mapped)
    return mapped


def release_pages() -> None:
    """Free the memory of mapped files that nothing was written to; later reads load it again.

    Nothing is freed if the system doesn't report which mappings were written to.
    """
    file_at: dict[str, mmap.mmap] = {}
    for mapped_file in _maps:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped_file))
        file_at[f"{address:x}"] = mapped_file
    if not file_at:
        return
    current = None
    with (
        suppress(OSError),
        open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines,
    ):
        # The line with a region's address comes before the lines with its figures.
        for line in lines:
            region = _REGION.match(line)
            if region:
                current = file_at.get(region[1])
            elif current is not None and _UNCHANGED.match(line):
                current.madvise(mmap.MADV_DONTNEED)


@contextmanager
def unlocked() -> Iterator[None]:
    """Keep this thread from locking files into memory within the context.

    If permitted, ExecuTorch's runtime locks all weights that a backend reads, until the backend has
    packed its copies. The system can't free locked pages, and kills the process if memory is short.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    capabilities = _read_capabilities()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    if capabilities:  # with CAP_IPC_LOCK, root ignores the limit
        effective, *inherited = capabilities
        _set_capabilities([effective & ~_IPC_LOCK, *inherited])
    try:
        yield
    finally:
        if capabilities:
            _set_capabilities(capabilities)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def _read_capabilities() -> list[int]:
    """Return the capability words of this thread, or an empty list if the system has none."""
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    with suppress(AttributeError):
        if ctypes.CDLL(None).capget(_capability_header(), data) == 0:
            return list(_CAPABILITIES.unpack(data.raw))
    return []


def _set_capabilities(capabilities: list[int]) -> None:
    data = ctypes.create_string_buffer(_CAPABILITIES.pack(*capabilities))
    ctypes.CDLL(None).capset(_capability_header(), data)


def _capability_header() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
