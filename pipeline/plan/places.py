"""The places that exports read: which of them count, how records spell them, and what is there.

Three kinds of places are not inputs: files that a build itself writes, the Python environment,
whose distributions count by version, and the kernel's own folders. Everything else counts by
content, wherever it is.
"""

from __future__ import annotations

import os
import site
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from pipeline.store.digest import hash_json
from pipeline.store.distributions import find_installations
from pipeline.store.toolchain import CORE
from pipeline.store.workspace import Workspace

Kind = Literal["file", "listing", "link"]
FOLDER = "folder"  # the value of a `file` that is a folder
EXECUTABLE = " executable"  # follows the digest of a file that can be executed
# Folders that programs and libraries read on every machine; they count, but needn't be declared.
SYSTEM = (
    "/etc",
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/sbin",
    "/run",
    "/var/run",
)
_KERNEL_FOLDERS = ("/proc", "/sys", "/dev")
_MEMORY = "/dev/shm"  # holds files like any other folder
_PACKAGE = Path(__file__).resolve().parents[1]
# Part of every key, as `code`
_OWN_CODE = (str(_PACKAGE), str(_PACKAGE.with_name("pte_pipeline")))
# Folders that no export is meant to depend on, skipped if all files of a workspace are inputs.
_PASSED_OVER = {
    ".git",
    ".hg",
    ".svn",
    ".jj",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}


def within(path: str, folder: str) -> bool:
    """Return whether a normalized path is a folder or is inside it."""
    return path == folder or path.startswith(f"{folder.rstrip(os.sep)}{os.sep}")


class FolderSet:
    """A set of folders that is often asked whether a path is inside one of them."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._paths = {*folders}
        self._prefixes = tuple(f"{path.rstrip(os.sep)}{os.sep}" for path in self._paths)

    def hold(self, path: str) -> bool:
        """Return whether a normalized path is one of the folders or is inside one."""
        return path in self._paths or path.startswith(self._prefixes)


_KERNEL = FolderSet(_KERNEL_FOLDERS)


def _is_in_memory(path: str) -> bool:
    """Return whether a normalized path leads to a file that is kept in memory."""
    return path.startswith(f"{_MEMORY}{os.sep}")


def environment_folders() -> tuple[str, ...]:
    """Return the folders of the running Python.

    They are its library, installed distributions, programs, and everything else that makes up a
    virtual environment, but not data that someone keeps in one.
    """
    return _folders_of(sys.prefix, sys.base_prefix)


@cache
def _folders_of(prefix: str, base: str) -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], *_installation_folders()}
    folders.add(sysconfig.get_path("stdlib", vars={"installed_base": base}))
    if prefix != base:
        names = ("bin", "include", "lib", "lib64", "pyvenv.cfg")
        folders |= {os.path.join(prefix, name) for name in names}
    folders |= set(map(os.path.realpath, folders))
    return tuple(sorted({os.path.normpath(folder) for folder in folders}))


@cache
def _installation_folders() -> tuple[str, ...]:
    """Return the folders in which distributions are installed.

    They are the folders of the environment, of the system if the environment shares them, of the
    user (`pip install --user`), and any other folder with distributions that are in every key, such
    as torch (`pip install --target`).
    """
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    folders += find_installations(CORE)
    return tuple(dict.fromkeys(map(os.path.normpath, folders)))


class Places:
    """The places around a workspace. Paths are absolute; `~` is the home folder of this process."""

    def __init__(self, workspace: Workspace) -> None:
        self.root = str(workspace.root)
        self.home = os.path.normpath(os.path.expanduser("~"))
        self._digests = workspace.file_digests
        self.installed = _installation_folders()
        written = [str(workspace.build), os.path.join(self.root, "build")]
        written += map(str, workspace.store.own_places)
        folders = [*written, *environment_folders(), sys.executable, *_OWN_CODE]
        self._inside = FolderSet(
            folder for folder in folders if within(folder, self.root)
        )
        self._outside = FolderSet([*folders, *_KERNEL_FOLDERS])
        self._hidden: dict[str, set[str]] = {}
        for path in written:
            self._hide(path)
        # The store's folder exists once something was built; files that others keep in it count.
        self._store = str(workspace.store.root)
        self._hide(self._store)

    def _hide(self, path: str) -> None:
        """Omit a path from the listing of its folder."""
        self._hidden.setdefault(os.path.dirname(path), set()).add(
            os.path.basename(path)
        )

    def wanted(self, path: str) -> bool:
        """Return whether the file or folder at a path can be an input."""
        path = os.path.normpath(path)
        if "__pycache__" in path or path.startswith(f"{self.root}{os.sep}.doit."):
            return False
        if path == self._store and not within(self.root, path):
            return False
        if _is_in_memory(path):
            return True
        excluded = self._inside if within(path, self.root) else self._outside
        return path in self.installed or not excluded.hold(path)

    def spell(self, path: str) -> str:
        """Return a path as records spell it: relative to the workspace, `~/...`, or absolute.

        Steps up (`..`) are kept, because after a link they lead elsewhere than the text suggests.
        """
        for folder, prefix in ((self.root, ""), (self.home, "~/")):
            if path.rstrip(os.sep) == folder:
                return prefix.rstrip("/") or "."
            if path.startswith(f"{folder.rstrip(os.sep)}{os.sep}"):
                parts = [
                    part
                    for part in path[len(folder) :].split(os.sep)
                    if part not in ("", ".")
                ]
                name = "/".join(parts)
                if not prefix and name.startswith("~"):
                    return f"./{name}"
                return f"{prefix}{name}"
        return path

    def locate(self, name: str) -> str:
        """Return the path that a record spells `name`."""
        if name == "~" or name.startswith("~/"):
            return self.home + name[1:]
        if name == ".":
            return self.root
        return os.path.join(self.root, name)

    def observe(self, kind: Kind, path: str) -> str | None:
        """Return what is at a path now.

        - `file`: the digest of a file's content and whether it can be executed, "folder", or a word
          for something without content
        - `listing`: the digest of the names in a folder, without those that can't be inputs
        - `link`: the target of a symbolic link

        Returns None if there is nothing of that kind.
        """
        try:
            match kind:
                case "file":
                    return self._observe_file(path)
                case "listing":
                    names = self.names(path)
                    if names is None:
                        return None
                    return hash_json(names)
                case "link":
                    return self.spell(os.readlink(path))
        except PermissionError:
            return "unreadable"
        except (OSError, ValueError):  # missing, or NUL in a name
            return None

    def _observe_file(self, path: str) -> str:
        status = os.stat(path)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            return FOLDER
        real = os.path.normpath(path)
        if (_KERNEL.hold(real) and not _is_in_memory(real)) or not stat.S_ISREG(mode):
            # Reading one may never end, and a forged record may name it.
            return "special"
        content = self._digests.find_cached(path, status) or self._digests.hash(
            Path(path)
        )
        return content + (EXECUTABLE if mode & 0o111 else "")

    def names(self, folder: str) -> list[str] | None:
        """Return the sorted names in a folder that can be inputs, or None if it can't be listed."""
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        counts = self._counting(folder)
        return sorted(filter(counts, names))

    def _counting(self, folder: str) -> Callable[[str], bool]:
        """Return a function that tells whether a name in a folder counts."""
        hidden = {"__pycache__", *self._hidden.get(folder, ())}
        begin = "\0"
        if folder == self.root:
            begin = ".doit."
        return lambda name: name not in hidden and not name.startswith(begin)

    def walk(self, folder: str) -> Iterator[tuple[Kind, str]]:
        """Yield a folder and everything in it that can be an input.

        Folders of version control and of caches, and other virtual environments, are skipped.
        """
        yield "listing", folder
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        counts = self._counting(folder)
        for entry in (entry for entry in entries if counts(entry.name)):
            path = os.path.join(folder, entry.name)
            if entry.is_symlink():
                yield "link", path
            if entry.is_dir(follow_symlinks=False):
                is_python = os.path.lexists(os.path.join(path, "pyvenv.cfg"))
                if (
                    entry.name not in _PASSED_OVER
                    and not is_python
                    and self.wanted(path)
                ):
                    yield from self.walk(path)
            elif self.wanted(path):
                yield "file", path
