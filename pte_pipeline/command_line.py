"""The program `pte`: doit's command line for workspaces, which answers in any other folder too.

`pte lower` is `doit lower`. doit itself answers `doit --version` and `doit --help` before it looks
at commands of plugins, so these two are ours only here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

PROGRAM = "pte"
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
    from doit.doit_cmd import DoitMain  # which takes a tenth of a second

    DoitMain.BIN_NAME = PROGRAM
    return DoitMain().run(words) or 0


def describe_versions() -> Iterator[str]:
    """Yield a line for this package, then one for each that decides what it does, without importing
    them."""
    yield f"pte-pipeline {version('pte-pipeline')}"
    for name in _DISTRIBUTIONS:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name} is not installed"
