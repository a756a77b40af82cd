"""Finds the names of ExecuTorch that the core uses and the installed release lacks.

Both sides are read as text, and nothing is imported: the names come from the core's imports, from
attributes of imported modules, and from the names that `program.patching` replaces. The check runs
before an unknown release builds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pipeline
from pipeline.backends.host import package_folders
from pipeline.store.releases import installed_release

_PACKAGE = "executorch"
_ROOMS = ("compile", "config", "devices", "plan", "program", "run", "validate")
_BINDINGS = f"{_PACKAGE}.extension.pybindings"
_EXTENSIONS = ("*.so", "*.pyd")


def find_missing() -> list[str]:
    """Return the names that the core uses and the installed ExecuTorch lacks, as `module.name`."""
    used = {f"{_BINDINGS}.{installed_release().bindings}"}
    for room in _ROOMS:
        for path in Path(pipeline.__file__).parent.joinpath(room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if _PACKAGE in text:
                used.update(find_used(text))
    return sorted(name for name in used if not is_there(name))


def find_used(text: str) -> Iterator[str]:
    """Yield the names of ExecuTorch in the source of a module, as `module.name`."""
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_of_executorch(node.module):
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            yield from (x.name for x in node.names if _is_of_executorch(x.name))
    yield from imported.values()
    for node in ast.walk(tree):
        for owner, name in _find_attributes(node):
            if owner in imported and _find_file(imported[owner]) is not None:
                yield f"{imported[owner]}.{name}"


def _find_attributes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield a name and its attribute, from `owner.name` and from `replaced(owner, "name", ...)`."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            yield owner, name
        case ast.Call(args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_]) if (
            name.isidentifier()
        ):
            yield owner, name


def is_there(name: str) -> bool:
    """Return whether the installed ExecuTorch has a module, or a name in one."""
    if _find_file(name) is not None:
        return True
    module, _, attribute = name.rpartition(".")
    path = _find_file(module)
    if path is None or path.is_dir():
        return False
    names = _read_names(path)
    return attribute in names or "*" in names


def _is_of_executorch(module: str | None) -> bool:
    return (module or "").partition(".")[0] == _PACKAGE


@cache
def _find_file(module: str) -> Path | None:
    """Return the file of a module, the folder of a namespace package, or None."""
    package, *parts = module.split(".")
    for folder in package_folders(package):
        path = folder.joinpath(*parts)
        sources = (path.with_suffix(".py"), path / "__init__.py")
        extensions = [
            extension
            for pattern in _EXTENSIONS
            for extension in path.parent.glob(f"{path.name}.{pattern}")
        ]
        for file in (*sources, *extensions, path):
            if file.exists():
                return file
    return None


@cache
def _read_names(path: Path) -> frozenset[str]:
    """Return the names that a module binds; "*" if it takes all names of another module."""
    if path.suffix != ".py":
        return frozenset("*")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(_find_bound(tree.body))


def _find_bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, including those within `if` and `try`."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (
                    (alias.asname or alias.name).partition(".")[0]
                    for alias in node.names
                )
            case ast.Assign() | ast.AnnAssign():
                yield from (x.id for x in ast.walk(node) if isinstance(x, ast.Name))
            case ast.If() | ast.Try():
                yield from _find_bound([*node.body, *node.orelse])
                for handler in getattr(node, "handlers", ()):
                    yield from _find_bound(handler.body)
