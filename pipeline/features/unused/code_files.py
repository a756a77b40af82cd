"""Finds unused files, invalid Python and hidden modules in a workspace.

A file in `passes/` or `operators/` is used if a config or a setting names it, or if a module of the
workspace imports it. Nothing is imported to find out. A module of the workspace is hidden if this
package has its name. A config in a subfolder is never used.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pipeline
from pipeline.plan.plan import Plan
from pipeline.plan.user_code import list_files, open_code
from pipeline.program.workspace_modules import find_elsewhere
from pipeline.store.errors import Problem, listed
from pipeline.store.toolchain import code
from pipeline.store.workspace import CONFIG_SUFFIXES

_SHARED = (".so", ".dylib", ".dll")
_TEXT_OF_MODULE = r"(passes|operators)[./][\w./-]+"
_NAMED_BY = {
    "passes": "no config names a pass from it",
    "operators": "no config or setting names it in `operators`",
}
_FOLDERS = tuple(_NAMED_BY)


class CodeFiles:
    """The files of a workspace's `passes/` and `operators/`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._root = plan.workspace.root

    def find_broken(self) -> Iterator[Problem]:
        """Yield a problem for each pass or library of operators that is not valid Python."""
        yield from self._find_broken(self._modules(_FOLDERS))

    def find_broken_exporters(self) -> Iterator[Problem]:
        """Yield a problem for each exporter that is not valid Python.

        The export would report it as well, but later. No code of the exporter runs here.
        """
        paths = [source.path for source in self._plan.models.sources.values()]
        yield from self._find_broken(path for path in paths if path.suffix == ".py")

    def _find_broken(self, paths: Iterable[Path]) -> Iterator[Problem]:
        for path in paths:
            error = self._read(path)["error"]
            if error:
                line, message = error
                yield Problem(
                    self._name(path),
                    "",
                    f"is not valid Python: {message}",
                    "",
                    line,
                )

    def find_unused(self) -> Iterator[Problem]:
        """Yield a problem for each file that nothing uses.

        If a config has mistakes, there is none: the config may name the files.
        """
        files = [*self._files()]
        configs = self._plan.configs
        summaries = [configs.summary(package) for package in configs.packages]
        if not files or not all(summaries):
            return
        used = set(self._imported)
        for summary in filter(None, summaries):
            used |= self._locate_named("passes", summary.passes)
            used |= self._locate_named("operators", summary.operators)
        listed = self._plan.workspace.operators
        used |= self._locate_named("operators", listed)
        for path in files:
            if path not in used and not self._is_in_package_of(path, used):
                kind = _NAMED_BY[self._folder(path)]
                yield Problem(self._name(path), "", f"{kind}, so nothing loads it")

    def _files(self) -> Iterator[Path]:
        """Yield the files that a config could name, without helpers (`_common.py`) and tests."""
        for folder in _FOLDERS:
            for path in list_files(self._root / folder, folder).values():
                is_code = path.suffix == ".py" or (
                    folder == "operators" and path.suffix in _SHARED
                )
                if is_code and not path.name.startswith(("_", "test_", "conftest.")):
                    yield path

    def _modules(self, folders: Iterable[str]) -> Iterator[Path]:
        for folder in folders:
            for path in list_files(self._root / folder, folder).values():
                if path.suffix == ".py":
                    yield path

    def _locate_named(self, kind: str, references: Sequence[str]) -> set[Path]:
        """Return the files in a folder that configs or settings name."""
        if not references:
            return set()
        user_code = open_code(kind, self._plan.workspace)
        paths = map(user_code.locate, references)
        return {path for path in paths if path is not None}

    @cached_property
    def _imported(self) -> set[Path]:
        """The files that modules of the workspace import, or name in a string."""
        readers: set[Path] = set()
        modules = [*self._root.glob("*.py"), *self._modules(["models"])]
        for path in (*self._modules(_FOLDERS), *modules):
            folder = self._folder(path)
            for name in self._read(path)["imports"]:
                # A module that names itself isn't used by that.
                readers |= self._locate(name, folder) - {path}
        return readers

    def _locate(self, name: str, folder: str) -> set[Path]:
        """Return the files that a dotted name can mean in a module of a folder."""
        top, _, inner = name.partition(".")
        # Modules of these folders may import each other by their bare names.
        if top not in _FOLDERS:
            if (
                folder not in _FOLDERS
                or find_elsewhere(top, self._around(folder)) is not None
            ):
                return set()
            top = folder
            inner = name
        files: set[Path] = set()
        path = self._root / top
        for part in inner.split("."):
            path = path / part
            files |= {path / "__init__.py", path.with_name(f"{part}.py")}
            files |= {path.with_name(f"{part}{suffix}") for suffix in _SHARED}
        return files

    def _around(self, folder: str) -> tuple[str, str]:
        return str(self._root / folder), str(self._root)

    def _is_in_package_of(self, path: Path, used: Collection[Path]) -> bool:
        """Return whether a file is in a package that is used, and so may import it by any name."""
        parents = path.relative_to(self._root).parents
        packages = []
        # Neither the folder itself nor the workspace is a package.
        for folder in parents[:-2]:
            packages.append(self._root / folder / "__init__.py")
        return any(package in used and package.is_file() for package in packages)

    def _folder(self, path: Path) -> str:
        return path.relative_to(self._root).parts[0]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _read(self, path: Path) -> dict[str, Any]:
        """Return a module's imports, and the line and text of its syntax error if it has one."""
        digests = self._plan.workspace.file_digests
        try:
            read: dict[str, Any] = digests.cached(
                path,
                "module",
                lambda path: _read_module(path, self._root),
                code("plan"),
            )
        except OSError as error:
            return {"imports": [], "error": [0, f"cannot be read: {error.strerror}"]}
        return read


def _read_module(path: Path, root: Path) -> dict[str, Any]:
    try:
        # As bytes, since a file may declare its encoding.
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        return {"imports": [], "error": [error.lineno or 0, error.msg]}
    except ValueError as error:  # a null byte
        return {"imports": [], "error": [0, str(error)]}
    package = path.relative_to(root).parent.parts
    names = {name for node in ast.walk(tree) for name in _imported_names(node, package)}
    return {"imports": sorted(names), "error": None}


def _imported_names(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Yield the dotted names of modules that a node of a module in `package` may import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            parent = package[: len(package) - node.level + 1]
        else:
            parent = ()
        base = ".".join((*parent, *([node.module] if node.module else [])))
        yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
    elif isinstance(node, ast.Constant) and re.fullmatch(
        _TEXT_OF_MODULE, str(node.value)
    ):
        # For example, in `torch.ops.load_library("operators/fast.so")`.
        yield re.sub(r"\.(py|so|dylib|dll)$", "", str(node.value)).replace("/", ".")


def find_remarks(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each suspicious code file of a workspace."""
    files = CodeFiles(plan)
    mistakes = list(files.find_broken())
    broken_files = {mistake.file for mistake in mistakes}
    yield from mistakes
    for remark in files.find_unused():
        if remark.file not in broken_files:
            yield remark
    yield from _find_hidden_modules(plan.workspace.root)
    yield from _find_nested_configs(plan.workspace.configs, plan.workspace.root)


def find_broken_files(plan: Plan) -> list[Problem]:
    """Return the mistakes in code files, whether or not a config names them."""
    files = CodeFiles(plan)
    return [*files.find_broken(), *files.find_broken_exporters()]


def _find_hidden_modules(root: Path) -> Iterator[Problem]:
    """Yield a problem if the workspace has a module `pipeline`, which this package hides.

    All code of the workspace is imported next to this package.
    """
    package = Path(str(pipeline.__file__)).resolve().parent
    for place, name in (
        (root / "pipeline", "pipeline/"),
        (root / "pipeline.py", "pipeline.py"),
    ):
        # A folder without modules hides none.
        is_module = place.is_file() or any(place.glob("*.py"))
        if is_module and place.resolve() != package:
            remark = (
                "is hidden here: `import pipeline` means the package of pte-pipeline"
            )
            yield Problem(name, "", remark, "rename it if models or passes import it")


def _find_nested_configs(folder: Path, root: Path) -> Iterator[Problem]:
    """Yield a problem for each subfolder of the folder of configs that has configs."""
    for path in sorted(folder.glob("[!.]*/")):
        nested = sorted(p for p in path.rglob("[!.]*") if p.suffix in CONFIG_SUFFIXES)
        if nested:
            names = listed([p.relative_to(path).as_posix() for p in nested], 3)
            yield Problem(
                f"{os.path.relpath(path, root)}/",
                "",
                f"is a subfolder, so its configs ({names}) are ignored",
                f"move them to {folder.name}/",
            )
