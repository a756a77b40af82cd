"""Keeps the lines of libraries that stack traces quote, so that their files are read once.

torch formats a stack trace for every node of a graph, and three for every seed that it sets.
`linecache` then compares each file on the stack with the lines that it has read. In an exporter
these are hundreds of system calls, each of which waits until its watch has looked at it, although
none of the files is an input.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

from pipeline import moments
from pipeline.plan.places import FolderSet, environment_folders
from pipeline.run import isolated
from pipeline.run.isolated import running_files


def keep_quoted_lines(*packages: str) -> None:
    """Let this process and its forks keep the lines of libraries, of this package and of callers.

    The quoted lines then match the running code. Any other file, such as a module of the workspace,
    is still read again once it has changed.

    Args:
        packages: packages whose modules are on the stack of every exporter: their lines are read
            here, once for all forks.
    """
    if not isinstance(linecache.cache, _KeptLines):
        linecache.cache = _KeptLines(linecache.cache)
    prefixes = tuple(f"{package}." for package in packages)
    modules = [moments, isolated]
    # Copies, here and below, since other threads may import modules or quote lines meanwhile.
    for name, module in sys.modules.copy().items():
        if name.startswith(prefixes):
            modules.append(module)
    for module in modules:
        if module.__file__:
            linecache.getlines(module.__file__)


class _KeptLines(dict[str, Any]):
    """The cache of `linecache`; an entry without the time of its file is never compared with it."""

    def __init__(self, cache: dict[str, Any]) -> None:
        super().__init__()
        package = Path(isolated.__file__).parents[1]
        self._kept = FolderSet([*environment_folders(), str(package)])
        self._running = running_files()
        for name, entry in cache.copy().items():
            self[name] = entry

    def __setitem__(self, name: str, entry: Any) -> None:
        if len(entry) == 4 and (name in self._running or self._kept.hold(name)):
            size, _, lines, path = entry
            entry = size, None, lines, path
        super().__setitem__(name, entry)
