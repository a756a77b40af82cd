"""Libraries of a team's own operators: which ones a build may load, and how they are loaded.

A library is a Python module (`my_ops`), or a file: a module or a shared library
(`native/libops.so`), whose kernels ExecuTorch's runtime then has too. Loading one runs its code, so
a config names it among what others vouch for: what stands in the workspace's folder `operators/`,
and what the workspace's settings list, which every package has.

The digests of their files are part of keys, and are found without importing anything;
`plan/pass_inputs.py` says what else counts.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from pipeline.config.passes import list_files
from pipeline.program.fresh_imports import importing_from_text
from pipeline.program.import_errors import describe_load_error
from pipeline.program.operator_libraries import noting_operators
from pipeline.program.runtime_bindings import import_bindings
from pipeline.program.workspace_modules import (
    add_package,
    find_elsewhere,
    load_file,
    own_name,
)
from pipeline.store.errors import PipelineError
from pipeline.store.settings import OperatorSettings

FOLDER = "operators"
_SHARED = (".so", ".dylib", ".dll")
_FOLDERS = (FOLDER, ".")  # where modules of a workspace are looked for


def may_load(reference: str, root: Path, settings: OperatorSettings) -> bool:
    """Return whether a config may name a library."""
    if reference in settings.listed:
        return True
    path = find_file(reference, root)
    folder = Path(os.path.normpath(root / FOLDER))
    inside = path is not None and Path(os.path.normpath(path)).is_relative_to(folder)
    return settings.folder and inside and os.pardir not in Path(reference).parts


def remedy(settings: OperatorSettings) -> str:
    """Return what makes a library one that a config may name."""
    if settings.folder:
        return (
            f"put it into {FOLDER}/, or list it in `operators` of [tool.pte-pipeline]"
        )
    return "this build is untrusted: only PTE_PIPELINE_OPERATORS in its environment can list them"


def source_files(reference: str, root: Path) -> dict[str, Path]:
    """Find the files of the workspace whose content decides what a library is, by names without
    paths of this machine: all of `operators/` for what stands there, all of a package, or one file.
    Empty for an installed module, and for what is not there."""
    path = find_file(reference, root)
    if path is None:
        return {}
    if path.is_relative_to(root / FOLDER):
        return list_files(root / FOLDER, FOLDER)
    if path.name == "__init__.py":
        return list_files(path.parent, path.parent.name)
    return {reference if _is_path(reference) else path.name: path}


def is_there(reference: str, root: Path) -> bool:
    """Return whether there is such a library, in the workspace or installed."""
    if find_file(reference, root) is not None:
        return True
    try:
        return (
            not _is_path(reference)
            and find_spec(reference.partition(".")[0]) is not None
        )
    except (ImportError, ValueError):
        return False


def load_libraries(references: Sequence[str], root: Path) -> None:
    """Load libraries in their order, for good: torch knows their operators while this process
    lives, and ExecuTorch's runtime their kernels. A module of the workspace at `root` comes before
    an installed one of its name. Raises PipelineError for one that can't be loaded."""
    if not references:
        return
    # Which libraries with kernels are linked against, whether they say so or not.
    import_bindings()
    add_package(root / FOLDER)
    if str(root) not in sys.path:
        sys.path.append(str(root))
    with importing_from_text(
        lambda path: f"{path}{os.sep}".startswith(f"{root}{os.sep}")
    ):
        for reference in references:
            try:
                with noting_operators(reference):
                    _load(reference, root)
            except Exception as error:  # whatever the code of others raises
                fault = describe_load_error(error, root / FOLDER)
                if not is_there(reference, root):
                    fault = "is not a module or library here; "
                    fault += f"it is looked up in {FOLDER}/ and next to it, "
                    fault += "and among what is installed"
                raise PipelineError(f"operators: {reference}: {fault}") from error


def _load(reference: str, root: Path) -> None:
    path = find_file(reference, root)
    if _is_path(reference) and reference.endswith(_SHARED):
        import torch

        torch.ops.load_library(root / reference)
    elif path is None:
        importlib.import_module(reference)
    # By whichever name it was imported: torch takes the definition of an operator once.
    elif _find_loaded(path) is None:
        _load_file(reference, path, root)


def _load_file(reference: str, path: Path, root: Path) -> None:
    """Load a module of the workspace under a name of its own, so that it can be called as an
    installed one is."""
    folder = root / FOLDER
    if path.is_relative_to(folder):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        importlib.import_module(".".join((FOLDER, *parts)))
    elif not _is_path(reference) and find_elsewhere(reference, (str(root),)) is None:
        importlib.import_module(reference)
    else:
        load_file(path, own_name(FOLDER, path))


def _find_loaded(path: Path) -> ModuleType | None:
    loaded = list(sys.modules.values())
    return next(
        (m for m in loaded if getattr(m, "__file__", None) == str(path)),
        None,
    )


def _is_path(reference: str) -> bool:
    return os.sep in reference or reference.endswith((".py", *_SHARED))


def find_file(reference: str, root: Path) -> Path | None:
    """Return the file of a library in the workspace, or at a path; None for others."""
    if _is_path(reference):
        path = root / reference
        return path if os.path.isfile(path) else None  # of names of any length
    for folder in _FOLDERS:
        path = root.joinpath(folder, *reference.split("."))
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if os.path.isfile(file):
                return file
    return None
