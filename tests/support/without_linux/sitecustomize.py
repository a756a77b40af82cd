"""Hides from a Python process what Linux has and a Mac lacks: system calls and files of the kernel.

Python imports this module at startup in each process that has this folder in PYTHONPATH: doit, its
workers, and the forks of exporters. If the variable FOLDED names a folder, names below it are
looked up as on macOS's file systems, where neither case nor Unicode normalization matters.
"""

import builtins
import ctypes
import errno
import io
import os
import unicodedata

CALLS = (
    *("copy_file_range", "memfd_create", "pidfd_open", "posix_fadvise", "prlimit"),
    *("sched_getaffinity", "sched_setaffinity", "splice"),
)
OF_LIBC = ("prctl", "syscall")
FOLDERS = ("/proc", "/sys")


def is_hidden(path):
    """Return whether a path is below a folder that the Linux kernel provides."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    name = os.fsdecode(path)
    return any(name == folder or name.startswith(f"{folder}/") for folder in FOLDERS)


def hiding(function):
    """Return the function, changed to find nothing at a hidden path."""

    def call(path=".", *arguments, **options):
        if is_hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *arguments, **options)

    return call


FOLDED = os.environ.get("FOLDED", "")


def fold(name):
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def existing_name(folder, name, list_names=os.listdir):
    """Return the entry of a folder that matches a name, or the name itself if none does."""
    try:
        names = list_names(folder)
    except OSError:
        return name
    if name in names or name in ("", ".", ".."):
        return name
    return next((entry for entry in names if fold(entry) == fold(name)), name)


def existing_path(path):
    """Return the path under which a file exists, whatever the spelling of `path`."""
    if not FOLDED or not isinstance(path, (str, os.PathLike)):
        return path
    whole = os.path.abspath(path)
    if not whole.startswith(f"{FOLDED}/"):
        return path
    place = FOLDED
    for name in whole[len(FOLDED) + 1 :].split("/"):
        place = os.path.join(place, existing_name(place, name))
    return place


def folding(function, paths=1):
    """Make the first paths of a function find existing files, except below an open folder."""

    def call(*arguments, **options):
        if any(value is not None for name, value in options.items() if name.endswith("dir_fd")):
            return function(*arguments, **options)
        meant = [existing_path(path) for path in arguments[:paths]]
        return function(*meant, *arguments[paths:], **options)

    return call


class Library(ctypes.CDLL):
    """The C library without the functions that only Linux has."""

    def __getattr__(self, name):
        if name in OF_LIBC:
            raise AttributeError(f"no function {name}, as on a Mac")
        return super().__getattr__(name)


for name in CALLS:
    if hasattr(os, name):
        delattr(os, name)
for name in ("open", "listdir", "scandir", "stat", "lstat", "readlink"):
    setattr(os, name, hiding(getattr(os, name)))
builtins.open = io.open = hiding(open)
if FOLDED:
    ONE = ("access", "chmod", "mkdir", "remove", "rmdir", "unlink", "utime")
    for name in ("open", "listdir", "scandir", "stat", "lstat", "readlink", *ONE):
        setattr(os, name, folding(getattr(os, name)))
    for name in ("link", "rename", "replace"):
        setattr(os, name, folding(getattr(os, name), paths=2))
    builtins.open = io.open = folding(open)
ctypes.CDLL = Library
