"""Files that are mapped into memory for the weights in them, privately: writing changes no file."""

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
_CAPABILITIES = struct.Struct("6I")  # effective, permitted, inheritable; of two words each
_maps: WeakSet[mmap.mmap] = WeakSet()
_REGION = re.compile(r"([0-9a-f]+)-[0-9a-f]+ ")
_UNCHANGED = re.compile(r"Anonymous: +0 kB")


def map_file(file: IO[bytes]) -> mmap.mmap:
    """Map a whole file. Raises OSError."""
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    _maps.add(mapped)
    return mapped


def release_pages() -> None:
    """Give back the memory of mapped files in which nothing was written: it is read again where it
    is looked at again. Where the system does not tell what was written, nothing is given back."""
    places = {f"{ctypes.addressof(ctypes.c_char.from_buffer(each)):x}": each for each in _maps}
    mapped = None
    with suppress(OSError), open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
        for line in lines if places else ():
            if region := _REGION.match(line):
                mapped = places.get(region[1])
            elif mapped is not None and _UNCHANGED.match(line):
                mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def unlocked() -> Iterator[None]:
    """Keep this thread from locking files into memory.

    ExecuTorch's runtime locks all weights that a backend looks at, where it may, until the backend
    has packed its own. Locked pages can't be taken back: where memory is short the process is
    killed for them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    capabilities = _read_capabilities()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    if capabilities:  # root's is above limits
        _set_capabilities([capabilities[0] & ~_IPC_LOCK, *capabilities[1:]])
    try:
        yield
    finally:
        if capabilities:
            _set_capabilities(capabilities)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def _read_capabilities() -> list[int]:
    """Return the capabilities of this thread; none where the system has no such thing."""
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
