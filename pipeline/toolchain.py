"""The versions that can change a package's bytes, read without importing what they describe."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

# Raise when this package itself would compile or link the same inputs to other bytes.
KEY_VERSION = 1

# What every compiled method depends on. flatbuffers lays out the bytes of a .pte file.
CORE = ("executorch", "flatbuffers", "numpy", "torch", "torchao")


@cache
def version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def toolchain(extra: Iterable[str] = ()) -> dict[str, str]:
    """Distribution name to version, with the Python version; part of every action's key."""
    names = sorted({*CORE, *extra})
    return {"python": platform.python_version(), **{name: version_of(name) for name in names}}


# Instruction sets that torch's CPU kernels choose between, with other rounding.
_ISA_FLAGS = frozenset({"amx_tile", "asimd", "avx2", "avx512_bf16", "avx512f", "fma", "sve"})


@cache
def host() -> dict[str, object]:
    """The facts of this machine on which the last bits of a computation in eager mode depend."""
    flags: set[str] = set()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
        for line in info:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                flags.update(value.split())
                break
    return {"machine": platform.machine(), "isa": sorted(flags & _ISA_FLAGS)}
