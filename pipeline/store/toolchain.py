"""Versions and code that can change a package's bytes, determined without importing any of it."""

from __future__ import annotations

import os
import platform
import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from blake3 import blake3

from pipeline.moments import Feature, find_features, find_modules
from pipeline.store.digest import hash_bytes
from pipeline.store.distributions import CHANGED, find_folders, identity
from pipeline.store.own_code import hash_own_files
from pipeline.store.startup import startup_code

# The code units of keys: the rooms (folders and modules) whose code can change what is described,
# planned, built, measured or reported. A version number that someone must remember to raise would
# be a stale hit waiting to happen; with digests, even a changed comment is a miss.
# tests/store/test_toolchain.py checks that each unit covers everything its entry points import.
_DESCRIBING = ("store", "program")
_PLANNING = (*_DESCRIBING, "moments.py", "backends", "config", "plan")
_BUILDING = (
    *(
        *_PLANNING,
        "compile",
        "run/*.py",
        "run/build",
        "report/*records.py",
    ),
    "features:build",
    "../pte_pipeline",  # through which exporters and plugins import the rest
)
_UNITS = {
    "describe": _DESCRIBING,
    "plan": (*_PLANNING, "features:names", "features:plan"),
    "export": (
        *(*_BUILDING, "features:export", "run/export", "validate", "devices"),
        "report/verdicts.py",
    ),
    "measure": (
        *(*_BUILDING, "features:measure", "devices", "validate", "run/prove"),
        "report/failures.py",
        "report/verdicts.py",
    ),
    "validate": ("features:report", "report", "validate", "run/prove"),
}

_FEATURES = "features:"
HASH_SEED = "PYTHONHASHSEED"
# The distributions that every compiled method depends on. flatbuffers lays out the bytes of a .pte
# file, and sympy simplifies the sizes that memory is planned for.
CORE = ("executorch", "flatbuffers", "numpy", "sympy", "torch", "torchao")


@cache
def code(kind: str = "") -> str:
    """Return the digest of the code that determines the results of actions of a kind.

    It is part of every action's key. The key of a `validate` action contains the key of its
    `measure` action, so a change to report code rewrites reports without measuring again, and a
    change to measuring code doesn't rebuild packages. For "describe", this is the code that makes
    the digests of programs; for "plan", the code that makes actions from configs.
    """
    hasher = blake3()
    for room in _UNITS.get(kind, _BUILDING):
        hasher.update(_room(room))
    return hasher.hexdigest()


@cache
def _room(room: str) -> bytes:
    """Return the digest of a room's files, including data files.

    For `features:<keys>`, the room is the features that take part in moments of these keys.
    """
    if room.startswith(_FEATURES):
        return _features(room.removeprefix(_FEATURES))
    path = posixpath.normpath(f"pipeline/{room}")
    if not room.endswith(".py"):
        return _hash_files(_find_below(path))
    folder = posixpath.dirname(path)
    return _hash_files(
        file
        for file in _find_below(folder)
        if posixpath.dirname(file) == folder and fnmatch(file, path)
    )


def _features(keys: str) -> bytes:
    """Return the digest of the features that take part in moments of these keys.

    A distribution is identified by `identity`, a folder by its files. Modules that take no part in
    these moments are left out, so that a change to a report section, or to a verb, doesn't
    recompile anything.
    """
    hasher = blake3()
    if keys == "names":  # which decide which keys of a config are refused
        return blake3(
            ",".join(feature.name for feature in find_features()).encode()
        ).digest()
    for feature in find_features():
        if not find_modules(feature, keys):
            continue
        hasher.update(feature.name.encode() + b"\0")
        if feature.distribution:
            hasher.update(identity(feature.distribution).encode())
            continue
        uncounted = find_uncounted(feature, keys)
        hasher.update(
            _hash_files(
                path
                for path in _find_below(f"pipeline/features/{feature.name}")
                if posixpath.splitext(posixpath.basename(path))[0] not in uncounted
            )
        )
    return hasher.digest()


def find_uncounted(feature: Feature, keys: str) -> set[str]:
    """Return the names of a feature's modules that don't count in keys of these moments.

    They are the modules of verbs and, in the keys of other actions, those of reports. Tests check
    that no moment of these keys imports any of them.
    """
    modules = {*find_modules(feature, ""), *find_modules(feature, "report")}
    modules -= {*find_modules(feature, keys)}
    return {module.rpartition(".")[2] for module in modules}


@cache
def _own_digests() -> Mapping[str, str]:
    """Return the digests of our own files by path, sorted by path."""
    return hash_own_files(Path(__file__).parents[2])


@cache
def _own_paths() -> Sequence[str]:
    """Return the paths of our own files, sorted."""
    return tuple(_own_digests())


def _find_below(folder: str) -> Sequence[str]:
    """Return the paths of our own files below a folder, a contiguous run of the sorted paths."""
    paths = _own_paths()
    return paths[bisect_left(paths, f"{folder}/") : bisect_left(paths, f"{folder}0")]


def _hash_files(paths: Iterable[str]) -> bytes:
    """Return the digest of some of our own files, in the given order."""
    digests = "".join(map(_own_digests().__getitem__, paths))
    return blake3(digests.encode()).digest()


def version_of(distribution: str) -> str:
    """Return the installed version of a distribution, or "not installed".

    If some files differ from its wheel, a digest of these files follows the version.
    """
    return identity(distribution)


def toolchain(extra: Iterable[str] = ()) -> dict[str, str]:
    """Return the toolchain by name: versions of distributions and Python, and digests of the rest.

    The digests cover the environment variables that the distributions read, and code that runs when
    Python starts. The toolchain is part of every action's key.
    """
    names = sorted({*CORE, *extra})
    versions = {
        "python": platform.python_version(),
        **{name: version_of(name) for name in names},
    }
    return {**versions, **_variables(), **startup_code()}


def unchanged_folders() -> list[str]:
    """Return the folders of the distributions in every key that don't differ from their wheels."""
    folders = []
    for name in CORE:  # their modules have the same names
        if CHANGED not in identity(name):
            folders += find_folders(name)
    return folders


def hash_seed() -> str:
    """Return the seed of `hash` in workers: the user's, or 0.

    It determines the order of sets of strings. It is part of the keys of exports; compiled code
    does not depend on it.
    """
    seed = os.environ.get(HASH_SEED, "")
    return seed if seed.isdigit() else "0"


def _variables() -> dict[str, str]:
    """Return digests of the variables that torch, ExecuTorch and their kernels read, by name.

    Variables that only determine where a library keeps files, or what it prints, don't count.
    Neither do numbers of threads: a worker has one.
    """
    names = (
        n for n in os.environ if n.startswith(_PREFIXES) and not n.endswith(_HARMLESS)
    )
    return {
        f"${name}": hash_bytes(os.fsencode(os.environ[name])) for name in sorted(names)
    }


_PREFIXES = (
    *(
        "ATEN_",
        "DNNL_",
        "EXECUTORCH_",
        "ET_",
        "FLATC_",
        "FX_",
        "KMP_",
        "MKL_",
        "NNCF_",
        "ONEDNN_",
    ),
    *("OPENBLAS_", "OV_", "PT2_", "PYTORCH", "TORCH", "XNN"),
    # With these, libraries, the loader and Python itself choose different code for the same call.
    *("BLIS_", "DYLD_", "GLIBC_TUNABLES", "LD_HWCAP_MASK", "NPY_"),
    *("PYTHONDEVMODE", "PYTHONOPTIMIZE", "PYTHONWARNINGS"),
)
# joblib sets KMP_INIT_AT_FORK in workers, but not in the process that plans a build.
_HARMLESS = (
    "_AT_FORK",
    "_DIR",
    "_HOME",
    "_HUB",
    "_LOGS",
    "_LOGLEVEL",
    "_LOG_LEVEL",
    "_THREADS",
    "_VERBOSE",
)

# Instruction sets that kernels of torch, oneDNN and MKL choose between; their rounding differs.
_ISA = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "i8mm", "sme", "sse4", "sve")


@cache
def cpu_fields() -> dict[str, str]:
    """Return the fields that Linux reports for the first core, by name; {} on other systems."""
    fields: dict[str, str] = {}
    with (
        suppress(OSError),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info,
    ):
        for line in info:
            if not line.strip():
                break
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    return fields


# The levels of x86-64, as named by glibc-hwcaps and the psABI, with the flags that each adds.
_LEVELS = {
    "v2": "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3",
    "v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
}
# Further flags that kernels of oneDNN, MKL and ATen depend on, beyond these levels or on ARM.
_BEYOND = {
    "amx_tile": "amx",
    "asimddp": "dot",
    "avx512_bf16": "bf16",
    "avx512_fp16": "fp16",
    "avx512_vnni": "vnni",
    "avx_vnni": "vnni",
    **{name: name for name in ("bf16", "i8mm", "sme", "sve", "sve2")},
}


@cache
def processor() -> str:
    """Return a short name for the processor features that kernels can use.

    An example is `GenuineIntel x86-64-v3+vnni`. Machines that compute alike have the same name.
    """
    fields = cpu_fields()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    name = platform.machine()
    for level, needed in _LEVELS.items():
        if flags.issuperset(needed.split()):
            name = f"x86-64-{level}"
    # On ARM, the part determines the length of vectors.
    makers = ("vendor_id", "CPU implementer", "CPU part")
    words = [fields[maker] for maker in makers if maker in fields]
    more = {_BEYOND[flag] for flag in flags & _BEYOND.keys()}
    return " ".join([*words, "+".join([name, *sorted(more)])])


def host() -> dict[str, object]:
    """Return the facts of this machine that can change the last bits of an eager computation."""
    fields = cpu_fields()
    isa = list(_instruction_sets(fields.get("flags", fields.get("Features", ""))))
    # MKL dispatches on the maker.
    maker = fields.get("vendor_id", fields.get("CPU implementer", ""))
    return {"machine": platform.machine(), "maker": maker, "isa": isa}


@cache
def _instruction_sets(flags: str) -> tuple[str, ...]:
    return tuple(sorted({flag for flag in flags.split() if flag.startswith(_ISA)}))
