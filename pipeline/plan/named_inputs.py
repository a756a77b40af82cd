"""Digests of what configs name in the workspace: files of options, passes, libraries of
operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from pipeline.config.operators import may_load
from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.models import Models, once
from pipeline.plan.pass_inputs import PassInputs
from pipeline.store.digest import Digest
from pipeline.store.workspace import Workspace

# The inputs of a pass or a library, by their names in keys.
Code = dict[str, str | None]


class NamedInputs:
    """The files and the code that configs name, as they stand when they are first looked at."""

    def __init__(
        self, workspace: Workspace, configs: ConfigCache, models: Models
    ) -> None:
        self._workspace = workspace
        self._configs = configs
        self._models = models
        self._known: dict[tuple[str, str], Any] = {}  # by method and package

    def forget(self) -> None:
        """Look again at passes and libraries."""
        self._known.clear()

    def files(self, package: str) -> Iterator[tuple[str, Digest]]:
        """Yield the files that options of a package name, with their digests."""
        summary = self._configs.summary(package)
        for path in summary.files if summary else ():
            digest = self._workspace.find_data(path)
            if digest is not None:
                yield path, digest

    def code(self, package: str) -> list[Mapping[str, str | None]]:
        """Return the inputs of a package's passes and of its libraries of operators."""
        return [
            *self.passes(package).values(),
            *dict(self.libraries(package)).values(),
        ]

    @once
    def passes(self, package: str) -> dict[str, Code]:
        """Return the inputs of a config's passes, by reference. Raises SourceError."""
        summary = self._configs.summary(package)
        return {
            reference: self._code_inputs.find(reference)
            for reference in (summary.passes if summary else ())
        }

    @once
    def libraries(self, package: str) -> list[tuple[str, Code]]:
        """Return the libraries of operators that a package has, with their inputs: those of the
        workspace, then the config's own. Raises SourceError."""
        summary = self._configs.summary(package)
        libraries = dict(self._models.libraries)
        for library in summary.operators if summary else ():
            # Others are a problem, and not read.
            if may_load(library, self._workspace):
                libraries.setdefault(library, self._code_inputs.find_library(library))
        return list(libraries.items())

    @cached_property
    def _code_inputs(self) -> PassInputs:
        return PassInputs(self._workspace)
