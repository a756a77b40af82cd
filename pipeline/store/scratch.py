"""Folders for temporary files that are removed with the process that made them, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.store.files import remove

_LOCK = "lock"


@contextmanager
def scratch_folder(prefix: str, parent: str | Path = "") -> Iterator[Path]:
    """Yield a new folder in `parent` or the system's temporary folder, and remove it afterwards.

    The folder is locked, so that folders of killed processes are recognized; those are removed
    first.
    """
    parent = os.path.realpath(parent or tempfile.gettempdir())
    for folder in Path(parent).glob(f"{prefix}*"):
        _remove_abandoned(folder)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with open(path / f"{_LOCK}.new", "w") as lock:
            with suppress(OSError):  # a filesystem without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, path / _LOCK)  # only now, so that it is never unlocked
            yield path
    finally:
        _remove(path)


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user if the process that made it is gone."""
    with suppress(OSError):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(folder / _LOCK, flags)) as lock:
            # Raises while the folder's process is alive.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


def empty_folder(folder: Path) -> None:
    """Remove what can be removed from a folder, even from subfolders without write permission."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            subfolder = os.path.join(parent, name)
            if not os.path.islink(subfolder):
                with suppress(OSError):
                    os.chmod(subfolder, 0o700)
    for path in folder.glob("*"):
        with suppress(OSError):
            remove(path)


def _remove(folder: Path) -> None:
    empty_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)
