"""Finds the shared libraries that add delegates to ExecuTorch's runtime on this machine.

The runtime in ExecuTorch's wheel accepts delegates that register themselves when a library is
loaded, so a machine can run delegates that the wheel lacks, once somebody has built them (see
GUIDE). `PTE_DELEGATE_LIBRARIES` lists the libraries in the format of `PATH`. The bindings load
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path

from pipeline.backends.host import package_folders
from pipeline.store import digest

VARIABLE = "PTE_DELEGATE_LIBRARIES"
GUIDE = "docs/guides/running-delegates.md"


def delegate_libraries() -> list[Path]:
    """Return the libraries that the environment lists, in its order."""
    return [
        Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path
    ]


def find_library(backend_id: str) -> Path | None:
    """Return the first listed library whose file contains a delegate's name, or None."""
    return _find(backend_id, delegate_libraries())


def explain_missing(backend_id: str, label: str) -> str:
    """Explain that the runtime here lacks a delegate, or return "".

    Nothing is loaded: the function searches the files of the runtime and of the listed libraries
    for the delegate's name.

    Args:
        label: the delegate, in a word.
    """
    for path in delegate_libraries():
        if not path.is_file():
            return f"{VARIABLE} lists {path.name}, which does not exist"
    if find_library(backend_id) or _find(backend_id, _runtime_files()):
        return ""
    return f"ExecuTorch's wheel has no {label} delegate; {GUIDE} says how to add it ({VARIABLE})"


def find_facts(backend_id: str) -> dict[str, str]:
    """Return the value of `Execution.facts` for a delegate.

    It is the digest of the listed library that contains the delegate, if any.
    """
    library = find_library(backend_id)
    if library is None:
        return {}
    return {"delegate library": digest.hash_file(library)}


def _runtime_files() -> Iterable[Path]:
    """Yield the files of the runtime that the bindings load; a custom wheel has more."""
    for folder in package_folders("executorch"):
        yield from folder.joinpath("extension", "pybindings").glob("*_lib.*.so")


def holds(path: Path, backend_id: str) -> bool:
    """Return whether a file contains a delegate: its name, as a string that ends there."""
    try:
        # Cached until the file changes: it may be large, and keys ask again and again.
        return _holds(path, backend_id, path.stat().st_mtime_ns)
    except OSError:
        return False


def _find(backend_id: str, paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if holds(path, backend_id)), None)


@cache
def _holds(path: Path, backend_id: str, modified: int) -> bool:
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False  # an empty file, which can't be mapped
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return content.find(f"{backend_id}\0".encode()) >= 0
