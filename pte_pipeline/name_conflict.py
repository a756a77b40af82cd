"""Finds our package `pipeline`, even if a team's `pipeline/` comes first on the module search path.

Python searches the folder of a script or a dodo file before the installed packages. This module
imports nothing else of the distribution.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAME = "pipeline"
_PARENT = Path(__file__).absolute().parents[1]
PACKAGE = _PARENT / NAME
_log = logging.getLogger(__name__)


class _NeighborFinder:
    """A finder of the package `pipeline` next to `pte_pipeline`, and of no other module."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(NAME, [str(_PARENT)]) if name == NAME else None


def claim_pipeline(tell: bool = False) -> None:
    """Make `pipeline` mean this distribution's package in this process, whatever else is found.

    Args:
        tell: log a line if that hides another module from now on.

    Raises:
        ImportError: another module of this name has already been imported.
    """
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        place = _find_place(getattr(loaded, "__spec__", None))
        if not is_package(place):
            raise ImportError(describe_conflict(place), name=NAME)
        return
    if tell and (place := find_hidden()) is not None:
        _log.warning("%s", describe_hidden(str(place)))
    sys.meta_path.insert(0, _NeighborFinder)
    try:
        import_module(NAME)
    finally:
        sys.meta_path.remove(_NeighborFinder)


def find_hidden() -> Path | None:
    """Return the folder or file that `import pipeline` would find, unless it is this package."""
    place = _find_place(PathFinder.find_spec(NAME))
    return None if is_package(place) else place


def is_package(place: Path | None) -> bool:
    """Return whether a folder is this package.

    A path that is spelled like the package is not resolved, since any file that an exporter looks
    at counts as its input.
    """
    return place == PACKAGE or (place is not None and place.resolve() == PACKAGE.resolve())


def _find_place(spec: ModuleSpec | None) -> Path | None:
    """Return the folder of a package or the file of another module, or None if there is neither."""
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return Path(place) if place else None


def describe_hidden(place: str) -> str:
    return f"{place}: `import {NAME}` means the package of pte-pipeline, not this; rename it"


def describe_conflict(place: Path | None) -> str:
    """Return a message that names the module hiding this package."""
    what = place or f"a module `{NAME}` without a file"
    return f"{what} hides the package `{NAME}` of pte-pipeline in this process: rename it"
