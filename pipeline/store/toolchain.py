"""Versions and code that can change a package's bytes, found without importing what they are of."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from blake3 import blake3

from pipeline.store.distributions import identity

# The code units of keys: the rooms whose code can change what is described, planned, built,
# measured or reported. A version number that someone must remember to raise would be a stale hit
# waiting to happen; here a comment is a miss. tests/store/test_toolchain.py holds each unit to all
# that its entry points import.
_DESCRIBING = ("store", "program")
_PLANNING = (*_DESCRIBING, "backends", "config", "plan")
_BUILDING = (*_PLANNING, "compile", "run/*.py", "run/build", "report/records.py")
_UNITS = {
    "describe": _DESCRIBING,
    "plan": _PLANNING,
    "measure": (*_BUILDING, "devices", "validate", "run/prove"),
    "validate": ("report", "validate", "run/prove"),
}

# What every compiled method depends on. flatbuffers lays out the bytes of a .pte file, and sympy
# simplifies the sizes that memory is planned for.
CORE = ("executorch", "flatbuffers", "numpy", "sympy", "torch", "torchao")


def code(kind: str = "") -> str:
    """Return the digest of the code that decides what actions of a kind give.

    It is part of every action's key. Reports are made anew without measuring, since the key of a
    `validate` action holds that of its `measure` action, and packages are measured anew without
    building. Of "describe", it is the code that makes the digests of programs, and of "plan", that
    which makes actions from configs.
    """
    hasher = blake3()
    for room in _UNITS.get(kind, _BUILDING):
        hasher.update(_room(room))
    return hasher.hexdigest()


@cache
def _room(room: str) -> bytes:
    """Return the digest of a room's files, data files among them."""
    # What Python caches is left out with its temporary files (`x.cpython-311.pyc.140213`), which
    # come and go while other processes import.
    pattern = room if room.endswith(".py") else f"{room}/**/*"
    hasher = blake3()
    for path in sorted(Path(__file__).parents[1].glob(pattern)):
        if path.parent.name != "__pycache__" and path.is_file():
            source = path.read_bytes()
            hasher.update(len(source).to_bytes(8, "little") + source)
    return hasher.digest()


def version_of(distribution: str) -> str:
    """Return the installed version of a distribution, with a digest of the files that are not as
    its wheel brought them, or "not installed"."""
    return identity(distribution)


def toolchain(extra: Iterable[str] = ()) -> dict[str, str]:
    """Return versions by distribution, and Python's; part of every action's key."""
    names = sorted({*CORE, *extra})
    return {"python": platform.python_version(), **{name: version_of(name) for name in names}}


# Instruction sets that torch's CPU kernels choose between, with other rounding.
_ISA_FLAGS = frozenset({"amx_tile", "asimd", "avx2", "avx512_bf16", "avx512f", "fma", "sve"})


@cache
def cpu_fields() -> dict[str, str]:
    """Return what Linux says of the first core, by name; {} elsewhere."""
    fields: dict[str, str] = {}
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
        for line in info:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    return fields


def host() -> dict[str, object]:
    """Return what of this machine can change the last bits of a computation in eager mode."""
    fields = cpu_fields()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {"machine": platform.machine(), "isa": sorted(flags & _ISA_FLAGS)}
