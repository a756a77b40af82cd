"""The program `pte`: doit's command line for workspaces, which answers in any other folder too;
and whose workspace a folder is in. Nothing of doit is imported before it is needed.

`pte lower` is `doit lower`. doit itself answers `doit --version` and `doit --help` before it looks
at commands of plugins, so these two are ours only here.
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
    """Run a command line; return its exit status."""
    words = sys.argv[1:]
    if words[:1] in (["--version"], ["-V"]):
        print(*describe_versions(), sep="\n")
        return 0
    if words[:1] == ["--help"]:
        words = ["help"]
    elif words and words[0].startswith("-k"):  # before a command, doit's loader takes it
        words.insert(0, "run")
    elif words[:1] == ["_complete"]:  # by the shell, at each Tab
        return _complete(words[1:])
    from doit.doit_cmd import DoitMain  # which takes a tenth of a second

    DoitMain.BIN_NAME = PROGRAM
    try:
        doit = DoitMain()  # which reads pyproject.toml of this folder
    except tomllib.TOMLDecodeError as error:
        mistake = f"pyproject.toml: is not valid TOML: {error} [{_INVALID_SETTINGS}]"
        print(f"ERROR: {mistake}", file=sys.stderr)
        return 3
    return doit.run(words) or 0


def describe_versions() -> Iterator[str]:
    """Yield a line for this package, then one for each that decides what it does, without importing
    them."""
    yield f"pte-pipeline {version('pte-pipeline')}"
    for name in _DISTRIBUTIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"


def _complete(words: list[str]) -> int:
    """Print what may stand in place of the last word, where the installation has help."""
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
    """Return the dodo file of this name; of doit's default name, the nearest one in this folder or
    above, if there is one."""
    folder = Path.cwd()
    if name != DODO:
        return folder / name
    for parent in (folder, *folder.parents):
        if (parent / name).is_file():
            return parent / name
    return None


def is_ours(dodo: Path) -> bool:
    """Tell whether a dodo file takes the tasks of this package: by the public name, or from
    `pipeline.tasks` where no module beside the file is called so."""
    with suppress(OSError):
        text = dodo.read_bytes()
        if b"pte_pipeline.tasks" in text:
            return True
        folder = dodo.parent / NAME
        is_hidden = not is_package(folder) and any(folder.glob("tasks*"))
        return b"pipeline.tasks" in text and not is_hidden
    return False
