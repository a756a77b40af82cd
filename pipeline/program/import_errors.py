"""Explains import errors in a workspace.

An explanation names the workspace file that hides an installed library, and the line that raised
the error.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from pipeline.program.workspace_modules import is_from

_MODULE_IN_ERROR = re.compile(
    r"module '(?P<a>\w+)[\w.]*' has no attribute"
    r"|cannot import name .* from (partially initialized module )?'(?P<b>\w+)[\w.]*'"
    r"|No module named '(?P<c>\w+)\."
)


def explain_hidden(error: BaseException, folder: Path) -> str:
    """Explain that an installed library hides a file that an import may have meant, or return "".

    If the error says that a library lacks an attribute or a submodule, the import may have meant a
    file in the importing file's folder, or at the top of the workspace.
    """
    name = _name_of(error)
    file = _find_file(name, folder)
    if file is None:
        return explain_hidden_at_top(error, folder.parent)
    if is_from(sys.modules.get(name, ModuleType(name)), folder.parent):
        return ""
    return (
        f"`import {name}` means the installed {name}, which hides {folder.name}/{file.name}; to "
        f"import that file, write `from . import {name}`"
    )


def explain_hidden_at_top(error: BaseException, root: Path) -> str:
    """Explain that a library hides a module at the top of a workspace, or return ""."""
    name = _name_of(error)
    file = _find_file(name, root)
    loaded = sys.modules.get(name)
    if file is None or loaded is None or is_from(loaded, root):
        return ""
    slash = "/" if file.is_dir() else ""
    if name == "pipeline":
        installed = "package of pte-pipeline"
    else:
        installed = f"installed {name}"
    return (
        f"`import {name}` means the {installed}, which hides {file.name}{slash} of this "
        "workspace; rename it"
    )


def _name_of(error: BaseException) -> str:
    """Return the top-level name of the module that an error blames for a missing part, or ""."""
    if not isinstance(error, ImportError | AttributeError):
        return ""
    match = _MODULE_IN_ERROR.search(str(error))
    if match is None:
        return ""
    return next(filter(None, match.groupdict().values()), "")


def _find_file(name: str, folder: Path) -> Path | None:
    """Return the file or folder that would be imported as this name, or None."""
    if not name:
        return None
    for path in (folder / f"{name}.py", folder / name):
        if path.exists():
            return path
    return None


def describe_load_error(error: BaseException, folder: Path) -> str:
    """Describe why a module of a folder can't be loaded, with the workspace line that failed."""
    line = _find_line(error, folder.parent)
    message = f"cannot be loaded ({line}{type(error).__name__}: {error})"
    hint = explain_hidden(error, folder)
    if hint:
        return f"{message}; {hint}"
    return message


def _find_line(error: BaseException, root: Path) -> str:
    """Return the innermost workspace line of a traceback as `<file>:<line>: `, or ""."""
    places = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    for file, line in reversed(places):
        path = Path(file)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
        if path.is_relative_to(root) and not is_installed:
            return f"{path.relative_to(root).as_posix()}:{line}: "
    return ""
