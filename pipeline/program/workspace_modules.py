"""Modules in a folder of a workspace, such as `passes/`, under names of their own.

A module is called `<folder>.<name>`, so its file may be called as a library is. Beside it, modules
are imported by `from . import common`, or by their plain name `common`, which is the same module; a
plain name means what is installed, where something of this name is. A library that tries to import
what is not installed finds no module of the workspace in its place.
"""

from __future__ import annotations

import dis
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.program.fresh_imports import FromText

_NAMED = re.compile(
    r"module '(?P<a>\w+)[\w.]*' has no attribute"
    r"|cannot import name .* from (partially initialized module )?'(?P<b>\w+)[\w.]*'"
    r"|No module named '(?P<c>\w+)\."
)


class SiblingFinder:
    """Finds the modules of a folder by their plain names, after all that is installed, and after
    those of a folder `ahead` of it."""

    def __init__(self, folder: Path, ahead: Path | None = None) -> None:
        self.package = folder.name
        self.folder = str(folder)
        self._ahead = [str(ahead)] if ahead else []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of what a plain name means, or None where this folder has no part in
        it."""
        own = f"{self.package}.{name}"
        if path is not None:  # of a package that was found here
            top = name.partition(".")[0]
            if (
                not _is_same(top, f"{self.package}.{top}")
                or PathFinder.find_spec(own, path) is None
            ):
                return None
        elif name == self.package or PathFinder.find_spec(own, [self.folder]) is None:
            return None
        elif (installed := find_elsewhere(name, _around(Path(self.folder)))) is not None:
            return installed
        elif (first := self._find_ahead(name)) is not None:
            return first
        elif _is_tried_by_library(os.path.dirname(self.folder)):
            return None
        return ModuleSpec(name, _Alias(own))

    def _find_ahead(self, name: str) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, self._ahead) if self._ahead else None
        return spec if spec is not None and spec.origin is not None else None


def _is_tried_by_library(root: str) -> bool:
    """Return whether code outside of a workspace has the statement `import` for a module, or asks
    whether it is there, as for `onnx` where that is optional. A name that code is given, such as
    that of a pickled class, is no such try."""
    frame, asks = inspect.currentframe(), False
    while frame is not None and _is_machinery(frame.f_code.co_filename):
        asks |= frame.f_code.co_filename in _UTIL
        frame = frame.f_back
    if frame is None or not os.path.isabs(frame.f_code.co_filename):
        return False
    file = os.path.realpath(frame.f_code.co_filename)
    is_own = any(file.startswith(f"{each}{os.sep}") for each in (root, os.path.realpath(root)))
    code = frame.f_code.co_code
    has_statement = dis.opname[code[frame.f_lasti]] == "IMPORT_NAME"
    return not is_own and (has_statement or asks)


def _is_machinery(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in _MACHINERY


# Beside the files of this package that wrap imports, those of importlib that pass them on.
_UTIL = ("<frozen importlib.util>", importlib.util.__file__)
_MACHINERY = {__file__, importlib.__file__, importlib.util.__file__}


def pass_on_imports(file: str) -> None:
    """Let a file, whose code wraps imports, not count as what imports."""
    _MACHINERY.add(file)


class _Alias(Loader):
    """Gives a module another name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._module = importlib.import_module(self._name)
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which `import` has replaced


def _is_same(name: str, other: str) -> bool:
    return name in sys.modules and sys.modules[name] is sys.modules.get(other)


def find_elsewhere(name: str, folders: Collection[str]) -> ModuleSpec | None:
    """Return the spec of a module at the top level that is in none of some folders: of the standard
    library, or installed. None if there is no such module."""
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
    """Return a folder of modules and the workspace that it is in."""
    return str(folder), str(folder.parent)


def add_package(folder: Path) -> None:
    """Let the modules of a folder be imported, as `<folder>.<name>` and by their plain names."""
    add_finder(folder)
    load_package(folder)


def add_finder(folder: Path, ahead: Path | None = None) -> None:
    """Let the modules of a folder be found by their plain names, after those of a folder `ahead`
    of it."""
    if not any(isinstance(f, SiblingFinder) and f.folder == str(folder) for f in sys.meta_path):
        finder: Any = SiblingFinder(folder, ahead)
        sys.meta_path.insert(0, finder)


def load_package(folder: Path) -> None:
    """Load a folder as a package, whether or not it has an `__init__.py`."""
    known = sys.modules.get(folder.name)
    if known is not None and str(folder) in getattr(known, "__path__", ()):
        return
    found = PathFinder.find_spec("__init__", [str(folder)])
    if found is not None and found.origin is not None:
        load_file(Path(found.origin), folder.name)
        return
    spec = ModuleSpec(folder.name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[folder.name] = module_from_spec(spec)


@contextmanager
def package_of(folder: Path) -> Iterator[None]:
    """Let the modules of a folder be imported within the context, and forget them afterwards: the
    process may load those of another workspace next, or these after an edit."""
    importlib.invalidate_caches()
    before = sys.modules.get(folder.name)
    try:
        add_package(folder)
        yield
    finally:
        _remove_finder(folder)
        loaded = list(sys.modules.items())
        for name in [name for name, module in loaded if _is_from(module, folder)]:
            del sys.modules[name]
        if before is not None:
            sys.modules[folder.name] = before


def _remove_finder(folder: Path) -> None:
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not (isinstance(finder, SiblingFinder) and finder.folder == str(folder))
    ]


def _is_from(module: ModuleType, folder: Path) -> bool:
    """Return whether a module, or a package without a file, is from a folder."""
    inside = (str(folder), f"{folder}{os.sep}")
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return file.startswith(inside[1])
    paths = [str(path) for path in getattr(module, "__path__", ())]
    return bool(paths) and all(path == inside[0] or path.startswith(inside[1]) for path in paths)


def own_name(package: str, path: Path) -> str:
    """Return the name of a file as a module of a package, whatever the file is called."""
    stem = path.parent.name if path.stem == "__init__" else path.stem
    return f"{package}.{stem.replace('.', '_')}"


def load_file(path: Path, name: str, loader: FromText | None = None) -> ModuleType:
    """Load a file as the module of a name."""
    spec = spec_from_file_location(name, path, loader=loader or FromText(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def explain_hidden(error: BaseException, folder: Path) -> str:
    """Return what hides a file of a folder that an import may have meant, or "" for other errors.

    An installed library without an attribute or a part, as the error says, may be taken for a file
    beside the one that imports it, or at the top of the workspace.
    """
    name = _name_of(error)
    file = _find_file(name, folder)
    if file is None:
        return explain_hidden_at_top(error, folder.parent)
    if _is_from(sys.modules.get(name, ModuleType(name)), folder.parent):
        return ""
    return (
        f"`import {name}` means the installed {name}, which hides {folder.name}/{file.name}; for "
        f"that say `from . import {name}`"
    )


def explain_hidden_at_top(error: BaseException, root: Path) -> str:
    """Return what hides a module at the top of a workspace, which has no other name, or ""."""
    name = _name_of(error)
    file, loaded = _find_file(name, root), sys.modules.get(name)
    if file is None or loaded is None or _is_from(loaded, root):
        return ""
    slash = "/" if file.is_dir() else ""
    installed = "package of pte-pipeline" if name == "pipeline" else f"installed {name}"
    return (
        f"`import {name}` means the {installed}, which hides {file.name}{slash} of this "
        "workspace; rename that"
    )


def _name_of(error: BaseException) -> str:
    """Return the first name of the module that lacks something, as an error says, or ""."""
    text = str(error) if isinstance(error, ImportError | AttributeError) else ""
    named = _NAMED.search(text)
    return next(filter(None, named.groupdict().values()), "") if named else ""


def _find_file(name: str, folder: Path) -> Path | None:
    """Return the file or folder that would be a module of a name."""
    places = (folder / f"{name}.py", folder / name) if name else ()
    return next((place for place in places if place.exists()), None)


def describe_load_error(error: BaseException, folder: Path) -> str:
    """Describe why a module of a folder can't be loaded, with its line in the workspace."""
    where = _find_line(error, folder.parent)
    hint = explain_hidden(error, folder)
    said = f"cannot be loaded ({where}{type(error).__name__}: {error})"
    return f"{said}; {hint}" if hint else said


def _find_line(error: BaseException, root: Path) -> str:
    """Return `<file>:<line>: ` of the innermost line of a workspace that an error leads to, or
    ""."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    for file, line in reversed(places):
        path = Path(file)
        if path.is_relative_to(root) and not {"site-packages", "dist-packages"} & set(path.parts):
            return f"{path.relative_to(root).as_posix()}:{line}: "
    return ""
