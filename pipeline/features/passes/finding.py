"""Passes by import path, `fusions:FuseGelu`: which ones a config may name, and their files.

A config is data. It may only name passes in code that someone has vouched for, not just anything
that can be imported:

- classes and functions of the workspace's `passes/` folder;
- what an installed distribution offers through an entry point of the group `pte_pipeline.passes`: a
  module (`acme.passes`) or one object (`acme.passes:FuseGelu`);
- ExecuTorch's own pass classes
  (`executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass`).

The digests of all files in a pass's folder or package are part of keys, so these files are found
without importing anything. `inputs.py` lists the other inputs.
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
# ExecuTorch's pass modules lie in such a folder, or have a name with such an ending.
_PASS_FOLDERS = {"passes", "_passes", "aten_passes", "edge_passes", "transforms"}
_PASS_MODULES = ("_pass", "_passes")


def source_files(reference: str, root: Path) -> dict[str, Path]:
    """Return the files whose content defines a pass (`module:name`), keyed by portable names.

    The names contain no path of this machine. The result is empty for a pass that no config may
    name. `root` is the workspace's folder.
    """
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
    """Return whether a module, judged by its name, is one of ExecuTorch's with passes."""
    top, *parts = module.split(".")
    tests = {"test", "tests", "examples"} & {*parts}
    passes = bool(_PASS_FOLDERS & {*parts}) or module.endswith(_PASS_MODULES)
    return top == EXECUTORCH and passes and not tests


def _module_file(module: str) -> dict[str, Path]:
    """Return the file of an installed module.

    The distribution's version is in every key, and covers its other files.
    """
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
    """Return what to do so that a config may name a pass."""
    module, _, name = reference.partition(":")
    if is_of_executorch(module) and not _module_file(module):
        return "the installed executorch has no such module"
    if module.startswith(f"{FOLDER}."):
        relative = module.removeprefix(f"{FOLDER}.")
        return f"name modules relative to {FOLDER}/: {relative}:{name}"
    if _find_spec(module) is None:
        return f"write {FOLDER}/{module.replace('.', '/')}.py, or offer it in the group {GROUP}"
    return (
        f"import {name} in a file of {FOLDER}/ that lists it in `__all__`, and name that; or offer "
        f"it in the group {GROUP}"
    )


def is_own(reference: str, root: Path) -> bool:
    """Return whether a pass belongs to the workspace."""
    return own_file(reference.partition(":")[0], root) is not None


def library_name(reference: str, root: Path) -> str:
    """Return the library name of the operators that loading a pass registers: its module."""
    module = reference.partition(":")[0]
    if is_own(reference, root):
        return f"{FOLDER}/{module.replace('.', '/')}.py"
    return module


def _find_spec(module: str) -> ModuleSpec | None:
    """Return the spec of a module's package, or of its own file, without importing it.

    A namespace package has no file of its own, so the search descends through it.
    """
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
    """Return the file of a workspace module, or None if there is none."""
    path = root.joinpath(FOLDER, *module.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    # `os.path.isfile` accepts names of any length.
    return next((file for file in files if os.path.isfile(file)), None)


def find_offered() -> set[str]:
    """Return the modules and objects that installed distributions offer as passes."""
    return {point.value.replace(" ", "") for point in entry_points(group=GROUP)}
