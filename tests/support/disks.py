"""Small disks mounted over folders, for one process and its children."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests.support.bench import Bench
from tests.support.forked import run_doit

_NEW_MOUNTS = 0x00020000


@cache
def can_mount() -> bool:
    """Return whether this process may mount file systems in a new mount namespace."""
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def mount_small(folder: Path, kilobytes: int) -> None:
    """Mount a small empty disk over a folder, visible to this process and its children only."""
    assert ctypes.CDLL(None).unshare(_NEW_MOUNTS) == 0
    disk = f"mount -t tmpfs -o size={kilobytes}k none {folder}"
    subprocess.run(f"mount --make-rprivate / && {disk}", shell=True, check=True)


def in_small_disk(bench: Bench, place: str, kilobytes: int, *words: str) -> tuple[int, str]:
    """Run doit with a small disk; return its exit status and output.

    The disk holds temporary files, `build/`, or the whole workspace with its store and temporary
    files.
    """
    temporary = bench.root / "tmp"
    places = {"temporary": temporary, "build": bench.root / "build", "workspace": bench.root}
    for folder in places.values():
        folder.mkdir(exist_ok=True)
    environment = {**bench.environment, "TMPDIR": str(temporary)}

    def prepare() -> None:
        with tempfile.TemporaryDirectory(dir=bench.root.parent) as copy:
            if place == "workspace":
                shutil.copytree(bench.root, copy, dirs_exist_ok=True)
            mount_small(places[place], kilobytes)
            if place == "workspace":
                shutil.copytree(copy, bench.root, dirs_exist_ok=True)
        os.chdir(bench.root)
        tempfile.tempdir = None

    return run_doit(bench.root, words, environment, 120, prepare)
