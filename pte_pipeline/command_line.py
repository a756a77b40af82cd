"""The program `pte`: doit's command line for workspaces, which also works in any other folder.

This module also finds the workspace of a folder. It imports doit only when needed.

`pte lower` is `doit lower`. doit itself handles `doit --version` and `doit --help` before it
consults the commands of plugins, so only `pte` can answer these two for the pipeline.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pte_pipeline.name_conflict import NAME, claim_pipeline, is_package

PROGRAM = "pte"
DODO = "dodo.py"
_INVALID_SETTINGS = "PTE621"
_DISTRIBUTIONS = ("executorch", "torch", "doit")


def main() -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:]
    if words[:1] in (["--version"], ["-V"]):
        print(*describe_versions(), sep="\n")
        return 0
    if words[:1] == ["--help"]:
        words = ["help"]
    elif words and words[0].startswith("-k"):  # before any command, doit's loader would take it
        words.insert(0, "run")
    elif words[:1] == ["_complete"]:  # called by the shell at each Tab
        return _complete(words[1:])
    from doit.doit_cmd import DoitMain  # takes a tenth of a second

    DoitMain.BIN_NAME = PROGRAM
    try:
        doit = DoitMain()  # reads this folder's pyproject.toml
    except tomllib.TOMLDecodeError as error:
        mistake = f"pyproject.toml: is not valid TOML: {error} [{_INVALID_SETTINGS}]"
        print(f"ERROR: {mistake}", file=sys.stderr)
        return 3
    return doit.run(words) or 0


def describe_versions() -> Iterator[str]:
    """Yield the version of this package, then of each package that affects what it builds.

    Nothing is imported to find them out.
    """
    yield f"pte-pipeline {version('pte-pipeline')}"
    for name in _DISTRIBUTIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"


def _complete(words: list[str]) -> int:
    """Print completions of the last word; return 1 if the `help` feature isn't installed."""
    claim_pipeline()
    try:
        candidates = import_module("pipeline.features.help.candidates")
    except ModuleNotFoundError:
        return 1
    dodo = find_dodo()
    root = dodo.parent if dodo and is_ours(dodo) else None
    candidates.print_candidates(words, root)
    return 0


def find_dodo(name: str = DODO) -> Path | None:
    """Return the dodo file of this name, or None if there is none.

    The default name is looked up in this folder and then in each of its parents.
    """
    folder = Path.cwd()
    if name != DODO:
        return folder / name
    for parent in (folder, *folder.parents):
        if (parent / name).is_file():
            return parent / name
    return None


def is_ours(dodo: Path) -> bool:
    """Return whether a dodo file takes its tasks from this package.

    It names either `pte_pipeline.tasks`, or `pipeline.tasks` if no local module of that name hides
    it.
    """
    with suppress(OSError):
        text = dodo.read_bytes()
        if b"pte_pipeline.tasks" in text:
            return True
        folder = dodo.parent / NAME
        is_hidden = not is_package(folder) and any(folder.glob("tasks*"))
        return b"pipeline.tasks" in text and not is_hidden
    return False
