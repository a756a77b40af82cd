"""Imports the passes that a config names, and instantiates them."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from pipeline.features.passes.finding import (
    EXECUTORCH,
    FOLDER,
    NOT_OFFERED,
    find_offered,
    is_of_executorch,
    library_name,
    own_file,
    source_files,
)
from pipeline.program.fresh_imports import importing_from_text
from pipeline.program.import_errors import describe_load_error
from pipeline.program.kept_state import keep_state, keep_state_in, kept_state
from pipeline.program.operator_libraries import noting_operators
from pipeline.program.workspace_modules import add_package, is_finder_of, is_from
from pipeline.store.errors import PipelineError, listed

if TYPE_CHECKING:
    from pipeline.config.edge import PassSpec

Pass = Callable[..., Any]
# Matches an option that names a file, such as `log_filename` of `DebugPass`, which writes to it.
_FILE_OPTION = re.compile(
    r"(^|_)(file(_?name|_?path)?|path(name)?|folder|dir(ectory|name)?)s?$"
)
# A package that downloads and unpacks an SDK on import unless the variable names one.
_DOWNLOADS, _SDK = f"{EXECUTORCH}.backends.qualcomm.", "QNN_SDK_ROOT"


def load_guarded(specs: Sequence[PassSpec], root: Path) -> list[Pass]:
    """Make the passes of these specs, which then restore torch's defaults and process state.

    `root` is the workspace's folder. Raises PipelineError as `load_passes` does.
    """
    names = [f"pass {spec.reference}" for spec in specs]
    with kept_state(listed(names)):
        return load_passes(specs, root, _keep_state)


def _keep_state(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if isinstance(function, partial | FunctionType | MethodType):
        return keep_state(function, name)
    return keep_state_in(function, ("__call__",), name)


def load_passes(
    specs: Sequence[PassSpec],
    root: Path,
    wrap: Callable[[Pass, str], Pass] = lambda loaded, name: loaded,
) -> list[Pass]:
    """Make the passes of these specs.

    A class is instantiated with its options. A function receives the options with each call. A
    factory is called once with them, and returns a pass or a list of passes.

    `wrap` receives each pass and its name for messages. Raises PipelineError if a pass may not be
    named, can't be imported or can't be made.
    """
    with _importing(root / FOLDER):
        # Load all passes before wrapping any.
        spec_to_passes = [(spec, _load(spec, root)) for spec in specs]
        wrapped = []
        for spec, passes in spec_to_passes:
            wrapped += [wrap(loaded, f"pass {spec.reference}") for loaded in passes]
        return wrapped


def _load(spec: PassSpec, root: Path) -> list[Pass]:
    reference = spec.reference
    if not source_files(reference, root):
        raise PipelineError(f"pass {reference}: {NOT_OFFERED}")
    passes: list[Pass] = []
    try:
        name, _, attribute = reference.partition(":")
        is_workspace = own_file(name, root) is not None
        if is_workspace:
            fault = ""
        else:
            fault = _forbidden(spec)
        with noting_operators(library_name(reference, root)):
            module = None
            if not fault:
                module = importlib.import_module(
                    f"{FOLDER}.{name}" if is_workspace else name
                )
            value = module and getattr(module, attribute)
        fault = fault or _foreign(module, name, attribute, value, is_workspace)
        if not fault:
            passes = _make(spec, value)
            if not passes or not all(map(callable, passes)):
                fault = "is not a pass: it can't be called with a graph module"
                if spec.factory:
                    fault = "makes neither a pass nor a list of passes"
    except Exception as error:  # whatever the user's code raises
        fault = describe_load_error(error, root / FOLDER)
        # The traceback would quote a secret.
        cause = error if spec.hide(fault) == fault else None
        raise PipelineError(f"pass {reference}: {spec.hide(fault)}") from cause
    if fault:
        raise PipelineError(f"pass {reference}: {fault}")
    return passes


def _forbidden(spec: PassSpec) -> str:
    """Return why a config may not name an ExecuTorch pass with these options, or ""."""
    if not is_of_executorch(spec.reference.partition(":")[0]):
        return ""
    if spec.reference.startswith(_DOWNLOADS) and not os.environ.get(_SDK):
        return f"downloads an SDK when it is imported; set {_SDK} to one"
    for name, value in spec.options.items():
        if _FILE_OPTION.search(name) and not isinstance(value, bool):
            return f"has the option {name!r}, but configs can't name files for ExecuTorch's passes"
    return ""


def _make(spec: PassSpec, value: Any) -> list[Pass]:
    options = spec.reveal()
    if not spec.factory:
        return [
            value(**options) if isinstance(value, type) else partial(value, **options)
        ]
    result = value(**options)
    result = getattr(result, "passes", result)  # the passes of a pass manager
    if isinstance(result, list | tuple):
        return [*result]
    return [result]


def _foreign(
    module: ModuleType | None,
    name: str,
    attribute: str,
    value: object,
    is_workspace: bool,
) -> str:
    """Return why a module may not offer an object as a pass, or "".

    A module doesn't offer what it merely imports, such as `subprocess`.

    Args:
        name: the module, as the config names it.
        is_workspace: whether the module belongs to the workspace.
    """
    if not is_workspace and is_of_executorch(name):
        if _is_pass_of_executorch(value):
            return ""
        return "is not a pass class of ExecuTorch"
    if attribute in getattr(module, "__all__", ()):
        return ""
    if not is_workspace and f"{name}:{attribute}" in find_offered():
        return ""
    home = str(getattr(value, "__module__", ""))
    defines = module is not None and f"{home}.".startswith(f"{module.__name__}.")
    if isinstance(value, type | FunctionType) and defines:
        return ""
    return "is not a class or function that the module defines or lists in `__all__`"


def _is_pass_of_executorch(value: object) -> bool:
    from executorch.exir.pass_base import ExportedProgramPassBase
    from torch.fx.passes.infra.pass_base import PassBase

    bases = (PassBase, ExportedProgramPassBase)
    home = str(getattr(value, "__module__", ""))
    is_pass = isinstance(value, type) and issubclass(value, bases)
    return is_pass and home.startswith(f"{EXECUTORCH}.")


@contextmanager
def package_of(folder: Path) -> Iterator[None]:
    """Make the modules of a folder importable within the context, and unload them afterwards.

    The process may load another workspace's modules next, or these again after an edit.
    """
    importlib.invalidate_caches()
    module_before = sys.modules.get(folder.name)
    try:
        add_package(folder)
        yield
    finally:
        _remove_finder(folder)
        modules = list(sys.modules.items())
        # Collect all names before removing any: the path of a namespace package is computed from
        # its parent's.
        names = [name for name, module in modules if is_from(module, folder)]
        for name in names:
            del sys.modules[name]
        if module_before is not None:
            sys.modules[folder.name] = module_before


def _remove_finder(folder: Path) -> None:
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not is_finder_of(finder, folder)
    ]


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Make the folder's modules importable from their text, and forget them afterwards."""
    inside = (str(folder), f"{folder}{os.sep}")
    with (
        importing_from_text(
            lambda path: path == inside[0] or path.startswith(inside[1])
        ),
        package_of(folder),
    ):
        yield
