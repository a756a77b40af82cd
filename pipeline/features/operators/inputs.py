"""The inputs of libraries of custom operators.

These are their files, the imports of these files, and everything that the `INPUTS` of their modules
declare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.features.operators.finding import (
    find_file,
    is_there,
    may_load,
    source_files,
)
from pipeline.plan.user_code import KNOWN, Code, UserCode
from pipeline.store.distributions import module_identity
from pipeline.store.errors import SourceError


class LibraryInputs(UserCode):
    """The inputs of a workspace's operator libraries, from the current content of their files."""

    def select(self, references: Iterable[str]) -> list[str]:
        """Return the libraries that a config may name; others are mistakes, and are never read."""
        return [name for name in references if may_load(name, self.workspace)]

    def find(self, reference: str) -> dict[str, str | None]:
        """Return the digests and versions of everything that a library depends on, by name.

        Raises:
            SourceError: the library doesn't exist, or its INPUTS are wrong.
        """
        root = self.workspace.root
        if not is_there(reference, root):
            who = ""
            if reference in self.workspace.operators:
                who = ", which the workspace's settings list,"
            raise SourceError(
                f"operators: {reference}{who} is not a module or library here"
            )
        files = source_files(reference, root)
        inputs = self.hash_files(files)
        if files:
            installed = []
        else:
            installed = [reference.partition(".")[0]]
        for name in self.imports(files.values()) or sorted({*installed} - KNOWN):
            inputs[f"import {name}"] = module_identity(name)
        return inputs | self.find_declared(self.modules([reference]))

    def modules(self, references: Iterable[str]) -> list[Path]:
        modules = set()
        for reference in references:
            for path in self.files(reference).values():
                if path.suffix == ".py":
                    modules.add(path)
        return sorted(modules)

    def files(self, reference: str) -> dict[str, Path]:
        return source_files(reference, self.workspace.root)

    def locate(self, reference: str) -> Path | None:
        return find_file(reference, self.workspace.root)

    def check(self, planned: Mapping[str, Code]) -> None:
        for reference, inputs in planned.items():
            if _drop_imports(self.find(reference)) != _drop_imports(inputs):
                raise SourceError(
                    f"operators: {reference}: changed while the build ran; run again"
                )


def _drop_imports(inputs: Code) -> dict[str, str | None]:
    """Return the inputs without imports: this process finds the workspace's modules first."""
    return {
        name: value for name, value in inputs.items() if not name.startswith("import ")
    }
