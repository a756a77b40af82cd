"""Imports of an exporter: the same in a fork as in a fresh process, and recorded by name."""

from __future__ import annotations

import builtins
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.abc import PathEntryFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.plan.places import FolderSet, environment_folders
from pipeline.program.fresh_imports import importing_from_text
from pipeline.program.workspace_modules import MACHINERY, add_finder, load_package

_PACKAGE = "__init__"  # of an exporter's folder, where Python looks for it


@contextmanager
def importing_for(root: Path, path: Path) -> Iterator[None]:
    """Make the workspace's modules importable for a fork that records its later lookups.

    Installed modules take precedence.
    """
    before, folders = list(sys.path), [str(root), str(path.parent)]
    kept_folders = [
        folder for folder in before if os.path.abspath(folder) not in folders
    ]
    sys.path[:] = [*kept_folders, str(root), _for_started_processes(path.parent)]
    installed = FolderSet(environment_folders())
    writing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with importing_from_text(lambda path: not installed.hold(path)):
            # List the folders of modules now, so that listing them doesn't make them inputs.
            PathFinder.find_spec("_")
            PathFinder.find_spec("_", [str(path.parent)])
            list(importlib.metadata.distributions(name="_"))
            yield
    finally:
        sys.path[:], sys.dont_write_bytecode = before, writing


def _for_started_processes(models: Path) -> str:
    """Return a `sys.path` entry through which spawned processes find a folder's modules.

    These processes inherit the entry. This process finds nothing through it, since it has a better
    finder.
    """
    entry = os.path.join(models, ".")
    sys.path_importer_cache[entry] = _NothingFinder()
    return entry


class _NothingFinder(PathEntryFinder):
    def find_spec(self, name: str, target: ModuleType | None = None) -> None:
        return None


class Asked:
    """Records the imports of this process, whether loaded before or not.

    It records modules by their first names, and distributions. It is installed as a finder that
    finds nothing.
    """

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._distributions: set[str] = set()
        self._all_distributions = False

    def begin(self) -> None:
        """Start recording."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        statement, function = builtins.__import__, importlib.import_module

        def note_statement(name: str, *args: Any, **options: Any) -> ModuleType:
            if not (args[3] if len(args) > 3 else options.get("level", 0)):
                self._modules.add(name.partition(".")[0])
            return statement(name, *args, **options)

        def note_function(name: str, package: str | None = None) -> ModuleType:
            self._modules.add(name.partition(".")[0])
            return function(name, package)

        builtins.__import__, importlib.import_module = note_statement, note_function

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self._modules.add(name.partition(".")[0])

    def find_distributions(self, context: Any) -> Iterable[Any]:
        if context.name is None:
            self._all_distributions = True
        else:
            self._distributions.add(context.name)
        return ()

    def to_json(self) -> dict[str, Any]:
        """Return the arguments of `DeclaredReads.find`."""
        return {
            "modules": sorted({*self._modules, _PACKAGE} - {""}),
            "distributions": sorted(self._distributions),
            "all_distributions": self._all_distributions,
        }


def import_afresh(models: Path) -> Asked:
    """Prepare this process to import like a fresh one; return the recorder of its imports.

    The fresh process would be in the exporter's folder and have loaded torch and this package.
    """
    add_finder(models, ahead=models.parent)
    MACHINERY.add(__file__)
    requests = Asked()
    requests.begin()
    load_package(models)
    return requests
