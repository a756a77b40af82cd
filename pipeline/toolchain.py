"""The versions that can change a package's bytes, read without importing what they describe."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from blake3 import blake3

# The modules of this package that decide what an action gives: what building a package makes, what
# measuring one finds, and what is made of that. A version number that someone must remember to
# raise would be a stale hit waiting to happen; a comment in one of these is a miss.
_BUILDING = (
    "backend_api",
    "backends/*",
    "backends/*/*",
    "borders",
    "calibration",
    "compile",
    "confine",
    "constant_names",
    "contents/*",
    "control_flow",
    "delegates",
    "delegation",
    "emission",
    "etrecord",
    "export",
    "generate",
    "graphs",
    "input_files",
    "inputs",
    "instructions",
    "link",
    "lowering",
    "nodes",
    "objects",
    "package",
    "partitions",
    "passes",
    "perform",
    "preprocess",
    "preprocessed",
    "preprocessors",
    "programs",
    "quantize",
    "reasons",
    "selection",
    "signature",
    "spec_records",
    "specs",
    "spelling",
    "stretches",
)
_MEASURING = (
    "bundle",
    "devices/*",
    "eager",
    "locating/*",
    "measure",
    "metrics",
    "runtime",
    "validating/*",
)
_REPORTING = (
    "baseline",
    "figures",
    "gates",
    "integrity",
    "overview",
    "prove",
    "reports/*",
    "reports/templates/*",
)

# The modules that decide which actions a config and a model call for, and what their keys are.
_PLANNING = (
    "actions",
    "backends/*",
    "backends/*/*",
    "compose",
    "backends/constructors.json",
    "config",
    "config_fields",
    "config_models",
    "config_parser",
    "config_validate",
    "inventory",
    "matrix",
    "mistakes",
    "plan",
    "remembered",
    "selection",
    "sizes",
    "strict_yaml",
    "variables",
)
_DESCRIBING = ("canonical", "selection", "sources")

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
def _digest_of(names: tuple[str, ...]) -> str:
    hasher = blake3()
    for name in names:
        pattern = name if name.endswith((".json", "templates/*")) else f"{name}.py"
        for path in sorted(Path(__file__).parent.glob(pattern)):
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
