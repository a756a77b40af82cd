"""The inputs of passes: their files, the imports of these files, and the `INPUTS` of any module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

from pipeline.features.passes.finding import (
    FOLDER,
    is_own,
    library_name,
    own_file,
    source_files,
)
from pipeline.plan.user_code import Code, UserCode
from pipeline.store.distributions import module_identity
from pipeline.store.errors import SourceError


class PassInputs(UserCode):
    """The passes of a workspace, with their files as they are now."""

    def find(self, reference: str) -> dict[str, str | None]:
        root = self.workspace.root
        files = source_files(reference, root)
        inputs = self.hash_files(files)
        for name in self.imports(files.values()):
            inputs[f"import {name}"] = module_identity(name)
        if is_own(reference, root):
            return {**inputs, **self._declared}
        return inputs

    @cached_property
    def _declared(self) -> dict[str, str | None]:
        """The declared inputs of all modules: each pass of the workspace depends on all of them."""
        return self.find_declared(self.modules(()))

    def modules(self, references: Iterable[str]) -> list[Path]:
        return sorted((self.workspace.root / FOLDER).rglob("*.py"))

    def files(self, reference: str) -> dict[str, Path]:
        return source_files(reference, self.workspace.root)

    def locate(self, reference: str) -> Path | None:
        return own_file(reference.partition(":")[0], self.workspace.root)

    def library_name(self, reference: str) -> str:
        return library_name(reference, self.workspace.root)

    def check(self, planned: Mapping[str, Code]) -> None:
        for reference, inputs in planned.items():
            if self.find(reference) != inputs:
                raise SourceError(
                    f"pass {reference}: changed while the build ran; run again"
                )
