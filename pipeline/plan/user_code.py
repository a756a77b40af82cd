"""Workspace code that configs name, and that runs while packages are built.

This module finds the files, variables and distributions that such code depends on, which are part
of the keys of everything that the code helps to make.

Each kind of code, passes and operator libraries, is named like its folder and is provided by a
feature (`moments.Feature.user_code`). A key is made before its action runs, so the code must
declare what it reads at run time: in the `INPUTS` of its modules, like an exporter. Reading
anything else is an error, which `features/tracing/pass_reads.py` detects.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from pipeline.moments import find_functions, load
from pipeline.plan.declared import Declared, parse_declared, read_declared
from pipeline.plan.places import Places
from pipeline.program.workspace_modules import find_elsewhere
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import SourceError
from pipeline.store.toolchain import CORE, code, version_of
from pipeline.store.workspace import Workspace

# The digests and versions of everything that a piece of code depends on, by name.
Code = Mapping[str, str | None]
KNOWN = {*CORE, "pipeline", "pte_pipeline"}  # already part of every key


class CodeReader:
    """Finds what a workspace's modules depend on by reading their current files."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._digests = workspace.file_digests

    @cached_property
    def _places(self) -> Places:
        return Places(self.workspace)

    def hash_files(self, files: Mapping[str, Path]) -> dict[str, str | None]:
        """Return the digests of files, by name."""
        return {name: self._digests.hash(path) for name, path in files.items()}

    def find_declared(self, modules: Iterable[Path]) -> dict[str, str | None]:
        """Return the digests and versions of everything that the INPUTS of modules declare."""
        inputs: dict[str, str | None] = {}
        for where, declared in self.declared(modules):
            for name in declared.find(self._places, where):
                inputs[name] = self._digests.find(Path(self._places.locate(name)))
            for name in declared.environment:
                inputs[f"${name}"] = _digest_of(os.environ.get(name))
            for name in declared.distributions:
                inputs[f"lib:{name}"] = version_of(name)
        return inputs

    def declared(self, modules: Iterable[Path]) -> Iterator[tuple[str, Declared]]:
        """Yield the name and the declared inputs of each module that has any.

        Raises SourceError.
        """
        for path in modules:
            where = os.path.relpath(path, self.workspace.root)
            record = self._digests.cached(path, "inputs", read_declared, code("plan"))
            declared = parse_declared(record, where)
            if declared is not None:
                yield where, declared

    def imports(self, files: Iterable[Path]) -> list[str]:
        """Return the top-level modules that these files import.

        Modules that are part of every key are left out, and so are modules of the same folder,
        unless an import of that name finds another module.
        """
        named: set[str] = set()
        siblings: set[str] = set()
        folders = {str(self.workspace.root)}
        for path in files:
            siblings |= {path.stem, path.parent.name}
            folders.add(str(path.parent))
            if path.suffix == ".py":
                named |= set(
                    self._digests.cached(path, "imports", _read_imports, code("plan"))
                )
        named -= KNOWN
        hidden = set()
        for name in named & siblings:
            if find_elsewhere(name, folders) is None:
                hidden.add(name)
        return sorted(named - hidden)


class UserCode(CodeReader):
    """One kind of code that configs name: the base class of `moments.Feature.user_code`."""

    def select(self, references: Iterable[str]) -> list[str]:
        """Return the references that a config is allowed to name."""
        return list(references)

    def find(self, reference: str) -> dict[str, str | None]:
        """Return the digests and versions of all that a reference's code depends on, by name.

        Raises SourceError if its INPUTS are wrong.
        """
        raise NotImplementedError

    def modules(self, references: Iterable[str]) -> list[Path]:
        """Return the workspace modules whose INPUTS count for these references."""
        raise NotImplementedError

    def files(self, reference: str) -> dict[str, Path]:
        """Return the files, of the workspace or of a distribution, whose content counts."""
        raise NotImplementedError

    def locate(self, reference: str) -> Path | None:
        """Return the workspace file that a reference denotes, or None if it is another file."""
        raise NotImplementedError

    def library_name(self, reference: str) -> str:
        """Return the name under which the operators that the library registers are listed."""
        return reference

    def check(self, planned: Mapping[str, Code]) -> None:
        """Raise SourceError if any code, by reference, differs from the planned code."""
        raise NotImplementedError

    def find_all(self, references: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """Return the result of `find` for each reference."""
        return {reference: self.find(reference) for reference in references}


def _read_imports(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # loading the module reports the error
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(names)


def _digest_of(value: str | None) -> Digest | None:
    if value is None:
        return None
    return hash_bytes(os.fsencode(value))


def open_code(kind: str, workspace: Workspace) -> UserCode:
    """Return the current code of a kind, `passes` or `operators`, in a workspace.

    Raises SourceError if this installation has no feature that provides it.
    """
    kinds = find_functions("user_code")
    if kind not in kinds:
        raise SourceError(f'{kind}: this installation has no feature "{kind}"')
    user_code: UserCode = load(kinds[kind])(workspace)
    return user_code


def find_code(
    kind: str, references: Iterable[str], workspace: Workspace
) -> dict[str, dict[str, str | None]]:
    """Return what code depends on, by reference. Raises SourceError."""
    references = list(references)
    if not references:
        return {}
    return open_code(kind, workspace).find_all(references)


def check_code(kind: str, planned: Mapping[str, Code], workspace: Workspace) -> None:
    """Raise SourceError if any code, by reference, is no longer the code that was planned."""
    if planned:  # the copy of the workspace starts without cached properties
        open_code(kind, replace(workspace)).check(planned)


def list_files(folder: Path, name: str) -> dict[str, Path]:
    """Return the files in a folder, except hidden ones and Python's caches.

    The keys are their paths in the folder, with `name` in front.
    """
    name_to_path = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part[0] == "." or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden:
            name_to_path["/".join((name, *parts))] = path
    return name_to_path
