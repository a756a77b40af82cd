"""The versions that can change a package's bytes, read without importing what they describe."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from blake3 import blake3

# The sub-packages that decide what an action gives. A version number that someone must remember to
# raise would be a stale hit waiting to happen; a comment in one of these is a miss.
_BUILDING = ("program", "backends", "compile", "run")
_MEASURING = ("devices", "validate")
_REPORTING = ("report", "validate")
_PLANNING = ("program", "backends", "config", "plan")
_DESCRIBING = ("program",)

# What every compiled method depends on. flatbuffers lays out the bytes of a .pte file.
CORE = ("executorch", "flatbuffers", "numpy", "torch", "torchao")


def code(kind: str = "") -> str:
    """The digest of the code of this package that decides what an action of a kind gives; part of
    every action's key. Reports are made anew without measuring, and packages are measured anew
    without building."""
    match kind:
        case "measure":
            return _digest_of((*_BUILDING, *_MEASURING))
        case "validate":
            return _digest_of(_REPORTING)
        case _:
            return _digest_of(_BUILDING)


def planning_code() -> str:
    """The digest of the code that makes actions of configs: of what the plan may remember."""
    return _digest_of(_PLANNING)


def describing_code() -> str:
    """The digest of the code that makes the digests of programs."""
    return _digest_of(_DESCRIBING)


@cache
def _digest_of(packages: tuple[str, ...]) -> str:
    hasher = blake3()
    for package in packages:
        for path in sorted((Path(__file__).parents[1] / package).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                source = path.read_bytes()
                hasher.update(len(source).to_bytes(8, "little") + source)
    return hasher.hexdigest()


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
