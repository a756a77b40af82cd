"""Passes by import path, `fusions:FuseGelu`: which ones a config may name, and their files.

A config is data: it names a pass among code that others vouch for, and nothing else that could be
imported. These are the classes and functions of the workspace's `passes/` folder, those that an
installed distribution offers by an entry point of the group `pte_pipeline.passes`: a module
(`acme.passes`), or one object (`acme.passes:FuseGelu`), and ExecuTorch's own pass classes
(`executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass`).

The digests of all files in a pass's folder or package are part of keys, so they are found without
importing anything; `inputs.py` says what else counts.
"""

from __future__ import annotations

import os
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from pipeline.plan.user_code import list_files

FOLDER = "passes"
GROUP = "pte_pipeline.passes"
NOT_OFFERED = (
    f"is not in {FOLDER}/, and no installed distribution provides it as an entry point"
)
EXECUTORCH = "executorch"
# ExecuTorch's modules of passes: those in such a folder, or with such an end of their name.
_PASS_FOLDERS = {"passes", "_passes", "aten_passes", "edge_passes", "transforms"}
_PASS_MODULES = ("_pass", "_passes")


def source_files(reference: str, root: Path) -> dict[str, Path]:
    """Find the files whose content decides what a pass (`module:name`) is, by names without paths
    of this machine. Empty for a pass that no config may name; `root` is the workspace's folder."""
    module = reference.partition(":")[0]
    if is_own(reference, root):
        return list_files(root / FOLDER, FOLDER)
    if is_of_executorch(module):
        return _module_file(module)
    if not {module, reference} & find_offered():
        return {}
    spec = _find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if origin.name == "__init__.py":
        return list_files(origin.parent, spec.name.replace(".", "/"))
    return {origin.name: origin}


def is_of_executorch(module: str) -> bool:
    """Return whether a module, by its name, is one of ExecuTorch's with passes."""
    top, *parts = module.split(".")
    tests = {"test", "tests", "examples"} & {*parts}
    passes = bool(_PASS_FOLDERS & {*parts}) or module.endswith(_PASS_MODULES)
    return top == EXECUTORCH and passes and not tests


def _module_file(module: str) -> dict[str, Path]:
    """Return the file of an installed module; all others of its distribution are in every key by
    its version."""
    parts = module.split(".")
    spec = find_spec(parts[0])
    for end in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return {}
        where = spec.submodule_search_locations
        spec = PathFinder.find_spec(".".join(parts[:end]), where)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if origin.stem == "__init__":
        folders = parts
    else:
        folders = parts[:-1]
    return {"/".join((*folders, origin.name)): origin}


def remedy(reference: str) -> str:
    """Return what makes a pass one that a config may name."""
    module, _, name = reference.partition(":")
    if is_of_executorch(module) and not _module_file(module):
        return "the installed executorch has no such module"
    if _find_spec(module) is None:
        return f"write {FOLDER}/{module.replace('.', '/')}.py, or offer it in the group {GROUP}"
    return (
        f"import {name} in a file of {FOLDER}/ that lists it in `__all__`, and name that; or offer "
        f"it in the group {GROUP}"
    )


def is_own(reference: str, root: Path) -> bool:
    """Return whether a pass is one of the workspace's own."""
    return own_file(reference.partition(":")[0], root) is not None


def library_name(reference: str, root: Path) -> str:
    """Return what the operators that loading a pass registers are listed under: its module."""
    module = reference.partition(":")[0]
    if is_own(reference, root):
        return f"{FOLDER}/{module.replace('.', '/')}.py"
    return module


def _find_spec(module: str) -> ModuleSpec | None:
    """Find the package of files that a module is in, or its own file, without importing it: a
    namespace, which has none of its own, is no more than a way there."""
    first, *parts = module.split(".")
    try:
        spec = find_spec(first)
        name = first
    except (ImportError, ValueError):
        return None
    for part in parts:
        if spec is None or spec.origin is not None:
            return spec
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec


def own_file(module: str, root: Path) -> Path | None:
    """Return the file of a module of the workspace's own; None where there is none."""
    path = root.joinpath(FOLDER, *module.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    # Of names of any length.
    return next((file for file in files if os.path.isfile(file)), None)


def find_offered() -> set[str]:
    """Return the modules, and the objects, that installed distributions offer as passes."""
    return {point.value.replace(" ", "") for point in entry_points(group=GROUP)}
