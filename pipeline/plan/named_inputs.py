"""Digests of the files, passes and operator libraries that configs name in the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.models import Models, once
from pipeline.plan.user_code import Code, UserCode, open_code
from pipeline.store.digest import Digest
from pipeline.store.workspace import Workspace


class NamedInputs:
    """The files and the code that configs name, as they were when they were first read."""

    def __init__(
        self, workspace: Workspace, configs: ConfigCache, models: Models
    ) -> None:
        self._workspace = workspace
        self._configs = configs
        self._models = models
        self._known: dict[tuple[str, str], Any] = {}  # by method and package

    def forget(self) -> None:
        """Forget the inputs of passes and libraries, to read them again."""
        self._known.clear()

    def files(self, package: str) -> Iterator[tuple[str, Digest]]:
        """Yield the files that a package's options name, with their digests."""
        summary = self._configs.summary(package)
        for path in summary.files if summary else ():
            digest = self._workspace.find_data(path)
            if digest is not None:
                yield path, digest

    def code(self, package: str) -> list[Code]:
        """Return the inputs of each of a package's passes and operator libraries."""
        return [*self.passes(package).values(), *dict(self.libraries(package)).values()]

    @once
    def passes(self, package: str) -> dict[str, Code]:
        """Return the inputs of a config's passes, by reference. Raises SourceError."""
        summary = self._configs.summary(package)
        if not summary or not summary.passes:
            return {}
        return {**self._passes.find_all(summary.passes)}

    @once
    def libraries(self, package: str) -> list[tuple[str, Code]]:
        """Return a package's operator libraries with their inputs: the workspace's, then its own.

        Raises SourceError.
        """
        summary = self._configs.summary(package)
        libraries: dict[str, Code] = dict(self._models.libraries)
        names = summary.operators if summary else ()
        names = tuple(name for name in names if name not in libraries)
        if names:
            libraries |= self._libraries.find_all(self._libraries.select(names))
        return list(libraries.items())

    @cached_property
    def _passes(self) -> UserCode:
        return open_code("passes", self._workspace)

    @cached_property
    def _libraries(self) -> UserCode:
        return open_code("operators", self._workspace)
