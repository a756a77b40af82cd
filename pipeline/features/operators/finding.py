"""Finds libraries of custom operators: which ones a build may load, and their files.

A library is a Python module (`my_ops`) or a file (`native/libops.so`), which may be a module or a
shared library. ExecuTorch's runtime also gets the kernels of a shared library. Loading a library
runs its code, so a config may name only what others vouch for: the libraries in the workspace's
folder `operators/`, and the libraries that the workspace's settings list, which are loaded for
every package.

The digests of library files are part of keys, and are computed without importing anything;
`inputs.py` has the other inputs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from pipeline.plan.user_code import list_files
from pipeline.store.workspace import Workspace

FOLDER = "operators"
SHARED = (".so", ".dylib", ".dll")
_FOLDERS = (FOLDER, ".")  # where to look for a workspace's modules


def may_load(reference: str, workspace: Workspace) -> bool:
    """Return whether a config may name a library."""
    if reference in workspace.operators:
        return True
    path = find_file(reference, workspace.root)
    folder = Path(os.path.normpath(workspace.root / FOLDER))
    inside = path is not None and Path(os.path.normpath(path)).is_relative_to(folder)
    return (
        workspace.operators_folder and inside and os.pardir not in Path(reference).parts
    )


def remedy(workspace: Workspace) -> str:
    """Return how to make a library one that configs may name."""
    if workspace.operators_folder:
        return (
            f"put it into {FOLDER}/, or list it in `operators` of [tool.pte-pipeline]"
        )
    return "this build is untrusted: only PTE_PIPELINE_OPERATORS in its environment can list them"


def source_files(reference: str, root: Path) -> dict[str, Path]:
    """Return the workspace files whose content decides what a library does.

    They are keyed by names without machine-specific paths: all of `operators/` for a library in it,
    all of a package, or one file. Empty if the library is an installed module or doesn't exist.
    """
    path = find_file(reference, root)
    if path is None:
        return {}
    if path.is_relative_to(root / FOLDER):
        return list_files(root / FOLDER, FOLDER)
    if path.name == "__init__.py":
        return list_files(path.parent, path.parent.name)
    return {reference if is_path(reference) else path.name: path}


def is_there(reference: str, root: Path) -> bool:
    """Return whether a library exists in the workspace or is installed."""
    if find_file(reference, root) is not None:
        return True
    try:
        return (
            not is_path(reference)
            and find_spec(reference.partition(".")[0]) is not None
        )
    except (ImportError, ValueError):
        return False


def is_path(reference: str) -> bool:
    return os.sep in reference or reference.endswith((".py", *SHARED))


def find_file(reference: str, root: Path) -> Path | None:
    """Return a library's file in the workspace or at a path, or None if there is none."""
    if is_path(reference):
        path = root / reference
        return path if os.path.isfile(path) else None  # False if overlong
    for folder in _FOLDERS:
        path = root.joinpath(folder, *reference.split("."))
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if os.path.isfile(file):
                return file
    return None
