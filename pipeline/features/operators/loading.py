"""Loads libraries of custom operators into this process, for the rest of its life."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pipeline.features.operators.finding import (
    FOLDER,
    SHARED,
    find_file,
    is_path,
    is_there,
)
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


def load_libraries(references: Sequence[str], root: Path) -> None:
    """Load libraries in order, for the rest of the process's life.

    torch keeps their operators, and ExecuTorch's runtime their kernels, until the process ends. A
    module of the workspace at `root` takes precedence over an installed one with the same name.

    Raises:
        PipelineError: a library can't be loaded.
    """
    if not references:
        return
    # Libraries with kernels link against the bindings, whether or not they declare it.
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
            except Exception as error:  # a library's code may raise anything
                fault = describe_load_error(error, root / FOLDER)
                if not is_there(reference, root):
                    fault = "is not a module or library here; "
                    fault += f"it is looked up in {FOLDER}/ and next to it, "
                    fault += "and among what is installed"
                raise PipelineError(f"operators: {reference}: {fault}") from error


def _load(reference: str, root: Path) -> None:
    path = find_file(reference, root)
    if is_path(reference) and reference.endswith(SHARED):
        import torch

        torch.ops.load_library(root / reference)
    elif path is None:
        importlib.import_module(reference)
    # It may have been imported under any name, and torch accepts each operator's definition once.
    elif _find_loaded(path) is None:
        _load_file(reference, path, root)


def _load_file(reference: str, path: Path, root: Path) -> None:
    """Load a module of the workspace under a unique name.

    This way, it may share its own name with an installed module.
    """
    folder = root / FOLDER
    if path.is_relative_to(folder):
        parts = path.relative_to(folder).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        importlib.import_module(".".join((FOLDER, *parts)))
    elif not is_path(reference) and find_elsewhere(reference, (str(root),)) is None:
        importlib.import_module(reference)
    else:
        load_file(path, own_name(FOLDER, path))


def _find_loaded(path: Path) -> ModuleType | None:
    loaded = list(sys.modules.values())
    return next(
        (m for m in loaded if getattr(m, "__file__", None) == str(path)),
        None,
    )
