"""Metric files: `metrics/<name>.py`, found without running them, and all that their values can
depend on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.plan.user_code import CodeReader
from pipeline.store.distributions import module_identity
from pipeline.store.workspace import Workspace

FOLDER = "metrics"
MODELS = "models"  # whose modules, such as what prepares inputs, a metric may import by their names


def split_name(entry: str) -> tuple[str, str]:
    """Return the file of an entry of `validate.metrics` without its suffix, and the value of the
    dict that its metric returns, or ""."""
    file, _, value = entry.partition(".")
    return file, value


def find_path(root: Path, file: str) -> Path:
    """Return the path of a metric's file in the workspace at `root`, whether or not it is there."""
    return root / FOLDER / f"{file}.py"


def list_files(root: Path) -> list[str]:
    """Return the names of the workspace's metrics, sorted."""
    return sorted(path.stem for path in (root / FOLDER).glob("[!_.]*.py"))


def find_inputs(workspace: Workspace, file: str) -> dict[str, str | None]:
    """Return the digests and versions of all that a metric depends on, by name: its file, the
    modules of the workspace that it imports, directly or not, what `INPUTS` of any of them names,
    and the installed modules. Raises SourceError for INPUTS that can't be."""
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
    """Return the file of a metric and those of the workspace's modules that it can import, by the
    names in import statements, sorted."""
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
    """Yield the files of a module of the workspace's metrics, of its models, or at its top level,
    wherever there are some."""
    for folder in (root / FOLDER, root / MODELS, root):
        module = folder / f"{name}.py"
        if module.is_file():
            yield module
        elif (folder / name).is_dir() and name != FOLDER:
            yield from (folder / name).rglob("*.py")
