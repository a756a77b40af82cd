"""Absolute paths of what a process names, as it names them."""

from __future__ import annotations

import os
from collections.abc import Sequence

_OWN = {
    "/proc/self/": "/proc/{}/",
    "/proc/thread-self/": "/proc/{}/",
    "/dev/fd/": "/proc/{}/fd/",
}


class OpenedFolders:
    """Folders that a process opened, by device and inode, with the paths by which it did so: what
    is opened relative to one is found by these, whatever links they lead over."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], dict[str, None]] = {}

    def add(self, path: str) -> None:
        """Raises OSError."""
        status = os.stat(path)
        self._names.setdefault((status.st_dev, status.st_ino), {})[path] = None

    def find(self, link: str | int, path: str) -> list[str]:
        """Return the paths by which a folder was opened, or `path`, given a link to it or its
        descriptor. Raises OSError."""
        status = os.stat(link)
        return list(self._names.get((status.st_dev, status.st_ino), ())) or [path]


def join(folders: Sequence[str], path: str) -> list[str]:
    """Join a path to the names of the folder to which it is relative, without empty steps and ".";
    ".." stays, which after a link leads elsewhere than it reads."""
    return [_clean(f"{folder}/{path}") for folder in folders]


def absolute(path: str, process: int) -> str:
    """Return an absolute path without empty steps. One that leads through /proc to another file of
    the process is resolved."""
    for prefix, target in _OWN.items():
        if path.startswith(prefix):
            path = target.format(process) + path.removeprefix(prefix)
    return os.path.realpath(path) if path.startswith("/proc/") else _clean(path)


def _clean(path: str) -> str:
    if "//" in path or "/." in path or path.endswith("/"):
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return path


def is_no_file(path: str) -> bool:
    """Return whether a path is a name for what has no file: code of a text, such as `<string>`, or
    the hook of an editable installation on `sys.path`."""
    named = os.path.basename(path).startswith(("<", "__editable__."))
    return named and not os.path.lexists(path)
