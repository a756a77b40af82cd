"""Passes of a workspace's own, named by import path: `fusions:FuseGelu`.

The module is looked for in the workspace's `passes/` folder, then among what is installed. The
digests of all the Python files that it could import from there are part of keys, so they are found
without importing anything; what a pass takes from other distributions is not.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.config.models import PassSpec

FOLDER = "passes"


def source_files(reference: str, root: Path) -> dict[str, Path]:
    """Find the files whose content decides what a pass (`module:name`) is, by names without paths
    of this machine. Empty for a module that is not there; `root` is the workspace's folder."""
    top = reference.partition(":")[0].partition(".")[0]
    folder = root / FOLDER
    if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
        return _python_files(folder, FOLDER)
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if origin.name == "__init__.py":
        return _python_files(origin.parent, top)
    return {origin.name: origin}


def _python_files(folder: Path, name: str) -> dict[str, Path]:
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path
        for path in sorted(folder.rglob("*.py"))
    }


def load_passes(specs: Sequence[PassSpec], root: Path) -> list[Callable[..., Any]]:
    """Make passes: a class is made with its options, a function is given them with each call.
    Raises PipelineError for one that can't be imported or made."""
    with _importing(root / FOLDER):
        return [_load(spec.reference, spec.options) for spec in specs]


def _load(reference: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
        made = found(**options) if isinstance(found, type) else partial(found, **options)
    except Exception as error:  # whatever the user's code raises
        raise PipelineError(
            f"pass {reference}: cannot be loaded ({type(error).__name__}: {error})"
        ) from error
    if not callable(made):
        raise PipelineError(f"pass {reference}: is not a pass; it can't be called with a graph")
    return made


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Make the folder's modules importable, and forget them afterwards: the process may load
    another workspace's next, or this one's after an edit."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
