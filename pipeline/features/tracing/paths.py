"""Absolute paths of the files that a process names, spelled as it names them."""

from __future__ import annotations

import os
from collections.abc import Sequence

_OWN = {
    "/proc/self/": "/proc/{}/",
    "/proc/thread-self/": "/proc/{}/",
    "/dev/fd/": "/proc/{}/fd/",
}


class OpenedFolders:
    """The folders that a process opened, by device and inode, with the paths that it used.

    A file that is opened relative to a folder is found by these paths, whatever links they contain.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], dict[str, None]] = {}

    def add(self, path: str) -> None:
        """Record a folder that was opened by a path. Raises OSError."""
        status = os.stat(path)
        self._names.setdefault((status.st_dev, status.st_ino), {})[path] = None

    def find(self, link: str | int, path: str) -> list[str]:
        """Return the paths by which a folder was opened, or `[path]` if it wasn't.

        `link` is a link to the folder, or its descriptor. Raises OSError.
        """
        status = os.stat(link)
        return list(self._names.get((status.st_dev, status.st_ino), ())) or [path]


def join(folders: Sequence[str], path: str) -> list[str]:
    """Join a relative path to each path of its folder, without empty steps and ".".

    ".." stays: after a link, it doesn't lead to the folder before it in the path.
    """
    return [_clean(f"{folder}/{path}") for folder in folders]


def absolute(path: str, process: int) -> str:
    """Return an absolute path without empty steps.

    A path through /proc to another file of the process is resolved.
    """
    for prefix, target in _OWN.items():
        if path.startswith(prefix):
            path = target.format(process) + path.removeprefix(prefix)
    return os.path.realpath(path) if path.startswith("/proc/") else _clean(path)


def _clean(path: str) -> str:
    if "//" in path or "/." in path or path.endswith("/"):
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return path


def is_no_file(path: str) -> bool:
    """Return whether a path names something without a file.

    That is code compiled from a string, such as `<string>`, or the hook of an editable installation
    on `sys.path`.
    """
    named = os.path.basename(path).startswith(("<", "__editable__."))
    return named and not os.path.lexists(path)
