"""Imports the modules in a folder of a workspace, such as `passes/`, under distinct names.

A module is called `<folder>.<name>`, so its file may have the name of a library. Modules of the
folder import each other with `from . import common`, or by the plain name `common`, which gives the
same module. But if a module of that name is installed, the plain name means the installed one. A
library that tries to import an optional dependency never gets a workspace module instead.
"""

from __future__ import annotations

import dis
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Collection, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.program.fresh_imports import FromText


class SiblingFinder:
    """A finder of a folder's modules by their plain names.

    Installed modules take precedence, and so do the modules of the folder `ahead`.
    """

    def __init__(self, folder: Path, ahead: Path | None = None) -> None:
        self.package = folder.name
        self.folder = str(folder)
        self._ahead = [str(ahead)] if ahead else []

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of the module that a plain name means, or None for other modules."""
        qualified_name = f"{self.package}.{name}"
        if path is not None:
            return self._find_submodule(name, path)
        if (
            name == self.package
            or PathFinder.find_spec(qualified_name, [self.folder]) is None
        ):
            return None
        installed = find_elsewhere(name, _around(Path(self.folder)))
        if installed is not None:
            return installed
        ahead = self._find_ahead(name)
        if ahead is not None:
            return ahead
        if _is_tried_by_library(os.path.dirname(self.folder)):
            return None
        return ModuleSpec(name, _Alias(qualified_name))

    def _find_submodule(self, name: str, path: Sequence[str]) -> ModuleSpec | None:
        """Return the spec of a module in a package, or None unless this folder has the package."""
        package = name.partition(".")[0]
        qualified_name = f"{self.package}.{name}"
        if not _is_same(package, f"{self.package}.{package}"):
            return None
        if PathFinder.find_spec(qualified_name, path) is None:
            return None
        return ModuleSpec(name, _Alias(qualified_name))

    def _find_ahead(self, name: str) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, self._ahead) if self._ahead else None
        if spec is not None and spec.origin is not None:
            return spec
        return None


def _is_tried_by_library(root: str) -> bool:
    """Return whether the current import is a library's attempt to import or find a module.

    That is, code outside the workspace has an `import` statement for the module, or asks whether
    the module exists, as for an optional dependency such as `onnx`. An import by a name in data,
    such as the module of a pickled class, doesn't count.
    """
    frame = inspect.currentframe()
    asks = False
    while frame is not None and _is_machinery(frame.f_code.co_filename):
        asks |= frame.f_code.co_filename in _UTIL
        frame = frame.f_back
    if frame is None or not os.path.isabs(frame.f_code.co_filename):
        return False
    file = os.path.realpath(frame.f_code.co_filename)
    roots = (f"{root}{os.sep}", f"{os.path.realpath(root)}{os.sep}")
    if file.startswith(roots):
        return False
    instruction = frame.f_code.co_code[frame.f_lasti]
    return asks or dis.opname[instruction] == "IMPORT_NAME"


def _is_machinery(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in MACHINERY


# Files that pass imports on: importlib's, and those of this package that wrap imports.
_UTIL = ("<frozen importlib.util>", importlib.util.__file__)
MACHINERY = {__file__, importlib.__file__, importlib.util.__file__}


class _Alias(Loader):
    """A loader that gives an existing module another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._module = importlib.import_module(self._name)
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # `import` has replaced it


def _is_same(name: str, alias: str) -> bool:
    return name in sys.modules and sys.modules[name] is sys.modules.get(alias)


def find_elsewhere(name: str, folders: Collection[str]) -> ModuleSpec | None:
    """Return the spec of a top-level module outside these folders, or None.

    Such a module is installed or belongs to the standard library.
    """
    for finder in sys.meta_path:
        if isinstance(finder, SiblingFinder):
            continue
        search = None
        if finder is PathFinder:
            search = [path for path in sys.path if os.path.abspath(path) not in folders]
        find: Any = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, search) if find else None
        if spec is not None and not _is_inside(spec, folders):
            return spec
    return None


def _is_inside(spec: ModuleSpec, folders: Collection[str]) -> bool:
    return spec.origin is not None and os.path.dirname(spec.origin) in folders


def _around(folder: Path) -> tuple[str, str]:
    """Return a folder of modules and the workspace that contains it."""
    return str(folder), str(folder.parent)


def add_package(folder: Path) -> None:
    """Make the modules of a folder importable, as `<folder>.<name>` and by their plain names."""
    add_finder(folder)
    load_package(folder)


def add_finder(folder: Path, ahead: Path | None = None) -> None:
    """Make the modules of a folder importable by their plain names.

    Modules of the folder `ahead` take precedence.
    """
    if not any(is_finder_of(finder, folder) for finder in sys.meta_path):
        finder: Any = SiblingFinder(folder, ahead)
        sys.meta_path.insert(0, finder)


def is_finder_of(finder: object, folder: Path) -> bool:
    return isinstance(finder, SiblingFinder) and finder.folder == str(folder)


def load_package(folder: Path) -> None:
    """Load a folder as a package, whether or not it has an `__init__.py`."""
    loaded = sys.modules.get(folder.name)
    if loaded is not None and str(folder) in getattr(loaded, "__path__", ()):
        return
    init = PathFinder.find_spec("__init__", [str(folder)])
    if init is not None and init.origin is not None:
        load_file(Path(init.origin), folder.name)
        return
    spec = ModuleSpec(folder.name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[folder.name] = module_from_spec(spec)


def is_from(module: ModuleType, folder: Path) -> bool:
    """Return whether a module, or a package without a file, was loaded from a folder."""
    prefix = f"{folder}{os.sep}"
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file.startswith(prefix)
    paths = [str(path) for path in getattr(module, "__path__", ())]
    return bool(paths) and all(f"{path}{os.sep}".startswith(prefix) for path in paths)


def own_name(package: str, path: Path) -> str:
    """Return a valid module name in a package for a file of any name."""
    stem = path.parent.name if path.stem == "__init__" else path.stem
    return f"{package}.{stem.replace('.', '_')}"


def load_file(path: Path, name: str, loader: FromText | None = None) -> ModuleType:
    """Load a file as the module of this name."""
    spec = spec_from_file_location(
        name,
        path,
        loader=loader or FromText(name, str(path)),
    )
    assert spec is not None and spec.loader is not None
    # Registered before it runs, as `import` does, since it may import a module that imports it.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
