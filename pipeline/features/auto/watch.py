"""`doit auto`: builds what a saved file affects, after each save.

Each build is a separate `doit` process, which determines what is stale. The stamps of files are
polled, which needs no library and works on any filesystem.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.cli.verbs import known_packages
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, listed

_LOOK = 0.5  # seconds between two polls
_QUIET = 0.3  # seconds without another save, since editors save several files
_NEVER = {"__pycache__", "node_modules"}

Stamps = dict[str, tuple[int, int]]


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Build packages, by default all, now and after each save. Raises PipelineError."""
    known_packages(plan, words)
    workspace = plan.workspace
    apart = {str(workspace.build.resolve()), str(workspace.store.root.resolve())}
    if workspace.store.root.resolve() == workspace.root.resolve():
        raise PipelineError(
            "the store is the workspace folder itself, so every build would look like a save"
        )
    before = find_stamps(workspace.root, apart)
    changed: list[str] = []
    while True:
        yield f"{listed(changed, 5)} changed" if changed else "building; Ctrl-C ends"
        _build(words)
        yield "waiting for a save"
        while not (
            changed := differing(before, now := find_stamps(workspace.root, apart))
        ):
            time.sleep(_LOOK)
        before = _settled(workspace.root, apart, now)


def _build(words: Sequence[str]) -> None:
    command = [sys.executable, "-P", "-m", "doit"]
    for group in ("lower", "validate") if words else ():
        command += [group, *words]
    subprocess.run(command, check=False)


def _settled(root: Path, apart: set[str], now: Stamps) -> Stamps:
    """Return the files' stamps once two polls in a row agree."""
    while True:
        time.sleep(_QUIET)
        later = find_stamps(root, apart)
        if later == now:
            return now
        now = later


def differing(before: Stamps, now: Stamps) -> list[str]:
    """Return the paths of files that were added, removed or saved."""
    return sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )


def find_stamps(root: Path, apart: set[str]) -> Stamps:
    """Return the modification time and size of each file of a workspace.

    The keys are paths relative to `root`. Hidden files and the folders in `apart` are left out.
    """
    stamps: Stamps = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NEVER
            and os.path.join(folder, name) not in apart
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        ]
        for name in files:
            path = os.path.join(folder, name)
            with suppress(OSError):  # gone meanwhile
                if not name.startswith("."):
                    status = os.stat(path)
                    stamp = status.st_mtime_ns, status.st_size
                    stamps[os.path.relpath(path, root)] = stamp
    return stamps
