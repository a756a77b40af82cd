"""Finds metric files, `metrics/<name>.py`, and everything that their values can depend on.

Nothing here runs a metric file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.plan.user_code import CodeReader
from pipeline.store.distributions import module_identity
from pipeline.store.workspace import Workspace

FOLDER = "metrics"
MODELS = "models"  # a metric may import its modules by plain name, e.g. one that prepares inputs


def split_name(entry: str) -> tuple[str, str]:
    """Split an entry of `validate.metrics` into its file, without the suffix, and a value's name.

    The name is a key of the dict that the metric returns, or "" if the entry has none.
    """
    file, _, value = entry.partition(".")
    return file, value


def find_path(root: Path, file: str) -> Path:
    """Return the path of a metric's file in the workspace at `root`, whether or not it exists."""
    return root / FOLDER / f"{file}.py"


def list_files(root: Path) -> list[str]:
    """Return the names of the workspace's metrics, sorted."""
    return sorted(path.stem for path in (root / FOLDER).glob("[!_.]*.py"))


def find_inputs(workspace: Workspace, file: str) -> dict[str, str | None]:
    """Return the digests and versions of everything that a metric depends on, by name.

    That is its file, the workspace modules that it imports directly or indirectly, the installed
    modules that any of these import, and everything that their `INPUTS` name. Raises SourceError if
    `INPUTS` is invalid.
    """
    reader = CodeReader(workspace)
    modules = find_modules(workspace, file)
    inputs: dict[str, str | None] = {}
    for path in modules:
        name = str(path.relative_to(workspace.root))
        inputs[name] = workspace.file_digests.hash(path)
    for name in reader.imports(modules):
        if not any(_find_module(workspace.root, name)):
            inputs[f"import {name}"] = module_identity(name)
    return inputs | reader.find_declared(modules)


def find_modules(workspace: Workspace, file: str) -> list[Path]:
    """Return the files of a metric and of the workspace modules that it can import, sorted.

    Modules are found by the names in import statements.
    """
    reader = CodeReader(workspace)
    modules: set[Path] = set()
    pending = [find_path(workspace.root, file)]
    while pending:
        path = pending.pop()
        if path in modules or not path.is_file():
            continue
        modules.add(path)
        for name in reader.imports([path]):
            pending += _find_module(workspace.root, name)
    return sorted(modules)


def _find_module(root: Path, name: str) -> Iterator[Path]:
    """Yield the files of a module from each place that has it.

    The places are the workspace's metrics, its models, and its top level.
    """
    for folder in (root / FOLDER, root / MODELS, root):
        module = folder / f"{name}.py"
        if module.is_file():
            yield module
        elif (folder / name).is_dir() and name != FOLDER:
            yield from (folder / name).rglob("*.py")
