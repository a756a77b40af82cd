"""Passes by import path, `fusions:FuseGelu`: which ones a config may name, and how they are made.

A config is data: it names a pass among code that others vouch for, and nothing else that could be
imported. These are the classes and functions of the workspace's `passes/` folder, those that an
installed distribution offers by an entry point of the group `pte_pipeline.passes`: a module
(`acme.passes`), or one object (`acme.passes:FuseGelu`), and ExecuTorch's own pass classes
(`executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass`).

The digests of all files in a pass's folder or package are part of keys, so they are found without
importing anything; `plan/pass_inputs.py` says what else counts.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pipeline.program.fresh_imports import importing_from_text
from pipeline.program.import_errors import describe_load_error
from pipeline.program.operator_libraries import noting_operators
from pipeline.program.workspace_modules import package_of
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.config.edge import PassSpec

Pass = Callable[..., Any]
FOLDER = "passes"
GROUP = "pte_pipeline.passes"
NOT_OFFERED = (
    f"is not in {FOLDER}/, and no installed distribution provides it as an entry point"
)
_EXECUTORCH = "executorch"
# ExecuTorch's modules of passes: those in such a folder, or with such an end of their name.
_PASS_FOLDERS = {"passes", "_passes", "aten_passes", "edge_passes", "transforms"}
_PASS_MODULES = ("_pass", "_passes")
# An option that names a file, as `log_filename` of `DebugPass`, which writes there.
_FILE_OPTION = re.compile(
    r"(^|_)(file(_?name|_?path)?|path(name)?|folder|dir(ectory|name)?)s?$"
)
# A package that downloads and unpacks an SDK when it is imported, but where one is named.
_DOWNLOADS, _SDK = f"{_EXECUTORCH}.backends.qualcomm.", "QNN_SDK_ROOT"


def source_files(reference: str, root: Path) -> dict[str, Path]:
    """Find the files whose content decides what a pass (`module:name`) is, by names without paths
    of this machine. Empty for a pass that no config may name; `root` is the workspace's folder."""
    module = reference.partition(":")[0]
    if is_own(reference, root):
        return list_files(root / FOLDER, FOLDER)
    if _is_executorchs(module):
        return _module_file(module)
    if not {module, reference} & _offered():
        return {}
    spec = _find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if origin.name == "__init__.py":
        return list_files(origin.parent, spec.name.replace(".", "/"))
    return {origin.name: origin}


def _is_executorchs(module: str) -> bool:
    """Return whether a module, by its name, is one of ExecuTorch's with passes."""
    top, *parts = module.split(".")
    tests = {"test", "tests", "examples"} & {*parts}
    passes = bool(_PASS_FOLDERS & {*parts}) or module.endswith(_PASS_MODULES)
    return top == _EXECUTORCH and passes and not tests


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
    if _is_executorchs(module) and not _module_file(module):
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


def _offered() -> set[str]:
    """Return the modules, and the objects, that installed distributions offer as passes."""
    return {point.value.replace(" ", "") for point in entry_points(group=GROUP)}


def list_files(folder: Path, name: str) -> dict[str, Path]:
    """Return all files in a folder but those that Python caches, and hidden ones, by their paths
    in it with a name in front."""
    name_to_path = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part[0] == "." or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden:
            name_to_path["/".join((name, *parts))] = path
    return name_to_path


def load_passes(
    specs: Sequence[PassSpec],
    root: Path,
    wrap: Callable[[Pass, str], Pass] = lambda loaded, name: loaded,
) -> list[Pass]:
    """Make passes: a class is made with its options, a function is given them with each call, and a
    factory with its one call, for a pass or a list of them.

    `wrap` is given each with what messages call it. Raises PipelineError for one that may not be
    named, can't be imported or can't be made.
    """
    with _importing(root / FOLDER):
        # All of them, before any is wrapped.
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
        # Its traceback would quote a secret.
        cause = error if spec.hide(fault) == fault else None
        raise PipelineError(f"pass {reference}: {spec.hide(fault)}") from cause
    if fault:
        raise PipelineError(f"pass {reference}: {fault}")
    return passes


def _forbidden(spec: PassSpec) -> str:
    """Return why a config may not have a pass of ExecuTorch's with such options, or ""."""
    if not _is_executorchs(spec.reference.partition(":")[0]):
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
    result = getattr(result, "passes", result)  # of a pass manager
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
    """Return why an object is not the module's to offer, or ""; what a module imports for itself,
    such as `subprocess`, is not.

    Args:
        name: the module, as the config names it.
        is_workspace: whether it is the workspace's.
    """
    if not is_workspace and _is_executorchs(name):
        if _is_pass_of_executorch(value):
            return ""
        return "is not a pass class of ExecuTorch"
    if attribute in getattr(module, "__all__", ()):
        return ""
    if not is_workspace and f"{name}:{attribute}" in _offered():
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
    return is_pass and home.startswith(f"{_EXECUTORCH}.")


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Make the folder's modules importable, from their text, and forget them afterwards."""
    inside = (str(folder), f"{folder}{os.sep}")
    with (
        importing_from_text(
            lambda path: path == inside[0] or path.startswith(inside[1])
        ),
        package_of(folder),
    ):
        yield
