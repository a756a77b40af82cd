"""Files that are mapped into memory for the weights in them, privately: writing changes no file."""

from __future__ import annotations

import ctypes
import mmap
import re
from contextlib import suppress
from typing import IO
from weakref import WeakSet

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
