"""The inputs of passes and of libraries of operators, which stand in the keys of what they help to
make.

A compile action's key is made before it runs, so what passes read at run time stands in their text:
`INPUTS` of any module in `passes/`, as exporters have it. What they read beside is an error, which
`features/tracing/pass_reads.py` finds.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from pipeline.config import operators
from pipeline.config.passes import FOLDER, is_own, source_files
from pipeline.plan.declared import Declared, parse_declared, read_declared
from pipeline.plan.places import Places
from pipeline.program.workspace_modules import find_elsewhere
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.distributions import module_identity
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import FileDigests
from pipeline.store.toolchain import CORE, code, version_of
from pipeline.store.workspace import Workspace

_KNOWN = {*CORE, "pipeline", "pte_pipeline"}  # count in every key


class PassInputs:
    """The inputs of a workspace's passes, as they are now."""

    def __init__(
        self, workspace: Workspace, digests: FileDigests | None = None
    ) -> None:
        self._workspace = workspace
        self._digests = digests or workspace.file_digests

    @cached_property
    def _places(self) -> Places:
        return Places(self._workspace)

    def find(self, reference: str) -> dict[str, str | None]:
        """Return the digests and versions of all that a pass depends on, by name. Raises
        SourceError for INPUTS that can't be."""
        root = self._workspace.root
        files = source_files(reference, root)
        inputs: dict[str, str | None] = {
            n: self._digests.hash(path) for n, path in files.items()
        }
        for name in self.imports(files.values()):
            inputs[f"import {name}"] = module_identity(name)
        if is_own(reference, root):
            return {**inputs, **self._declared}
        return inputs

    @cached_property
    def _declared(self) -> dict[str, str | None]:
        """The declared inputs of all modules: each pass of the workspace depends on them."""
        return self.find_declared(self.modules())

    def find_declared(self, modules: Iterable[Path]) -> dict[str, str | None]:
        """Return the digests and versions of all that INPUTS of modules name."""
        inputs: dict[str, str | None] = {}
        for where, declared in self.declared(modules):
            for name in declared.find(self._places, where):
                inputs[name] = self._digests.find(Path(self._places.locate(name)))
            for name in declared.environment:
                inputs[f"${name}"] = _digest_of(os.environ.get(name))
            for name in declared.distributions:
                inputs[f"lib:{name}"] = version_of(name)
        return inputs

    def find_library(self, reference: str) -> dict[str, str | None]:
        """Return the digests and versions of all that a library of operators depends on, by name.
        Raises SourceError where it is not there."""
        root = self._workspace.root
        if not operators.is_there(reference, root):
            listed = reference in self._workspace.operators.listed
            who = ""
            if listed:
                who = ", which the workspace's settings list,"
            raise SourceError(
                f"operators: {reference}{who} is not a module or library here"
            )
        files = operators.source_files(reference, root)
        inputs: dict[str, str | None] = {
            n: self._digests.hash(path) for n, path in files.items()
        }
        if files:
            installed = []
        else:
            installed = [reference.partition(".")[0]]
        for name in self.imports(files.values()) or sorted({*installed} - _KNOWN):
            inputs[f"import {name}"] = module_identity(name)
        return inputs | self.find_declared(self.library_modules([reference]))

    def library_modules(self, references: Iterable[str]) -> list[Path]:
        """Return the modules of the workspace in these libraries."""
        root = self._workspace.root
        modules = {
            f
            for reference in references
            for f in operators.source_files(reference, root).values()
        }
        return sorted(path for path in modules if path.suffix == ".py")

    def modules(self) -> list[Path]:
        """Return the modules of the workspace's passes."""
        return sorted((self._workspace.root / FOLDER).rglob("*.py"))

    def declared(self, modules: Iterable[Path]) -> Iterator[tuple[str, Declared]]:
        """Yield what modules declare, with their names. Raises SourceError."""
        for path in modules:
            where = os.path.relpath(path, self._workspace.root)
            record = self._digests.cached(path, "inputs", read_declared, code("plan"))
            declared = parse_declared(record, where)
            if declared is not None:
                yield where, declared

    def imports(self, files: Iterable[Path]) -> list[str]:
        """Return the modules at the top level that these files import, without those that are in
        every key, and those of the same folder, by whose names nothing else is imported."""
        named: set[str] = set()
        siblings: set[str] = set()
        folders = {str(self._workspace.root)}
        for path in files:
            siblings |= {path.stem, path.parent.name}
            folders.add(str(path.parent))
            if path.suffix == ".py":
                named |= set(
                    self._digests.cached(path, "imports", _read_imports, code("plan"))
                )
        named -= _KNOWN
        hidden = set()
        for name in named & siblings:
            if find_elsewhere(name, folders) is None:
                hidden.add(name)
        return sorted(named - hidden)


def _read_imports(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # loading it says why
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
