"""Python's view: audit events, and wrappers of the few file functions that raise none.

It is used if the kernel can't trace file accesses. Native code and other processes are not
followed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pipeline.features.tracing.paths import OpenedFolders, absolute, join
from pipeline.features.tracing.watch import FileAccessLog

_STARTS = (
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
)


def hear_audit_events(watch: FileAccessLog) -> None:
    """Record in `watch` what this process touches from now on. An audit hook can't be removed."""
    watch.view = "audit"
    hearer = _Hearer(watch)
    for name in ("stat", "lstat", "access", "readlink", "open"):
        setattr(os, name, hearer.wrap(name, getattr(os, name)))
    handlers, hear = hearer.handlers, hearer.hear

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in handlers:  # few are, and an export raises hundreds of thousands
            hear(event, args)

    sys.addaudithook(hook)


class _Hearer:
    def __init__(self, watch: FileAccessLog) -> None:
        self._watch = watch
        self._folders = OpenedFolders()
        self._busy = threading.local()  # the watch's own reads don't count
        names = [
            name.removeprefix("_on_") for name in dir(self) if name.startswith("_on_")
        ]
        self.handlers = {n.replace("__", "."): getattr(self, f"_on_{n}") for n in names}
        for event in _STARTS:
            self.handlers[event] = lambda *args: self._start(args)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_busy:
            with self._watching():
                self.handlers[event](*args)

    @property
    def _is_busy(self) -> bool:
        return hasattr(self._busy, "now")

    def wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of `os` that takes a path, so that its calls are recorded."""

        def wrapped(path: Any, *args: Any, **options: Any) -> Any:
            if not self._is_busy and not isinstance(path, int):
                with self._watching():
                    self._ask(name, path, args, options)
            return original(path, *args, **options)

        return wrapped

    def _ask(
        self, name: str, path: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        folder = options.get("dir_fd")
        for place in self._absolute(path, folder):
            if name == "readlink":
                self._watch.read_link(place)
            elif name == "open":
                if folder is not None:  # the event lacks it
                    self._on_open(place, None, args[0] if args else options["flags"])
            else:
                follow = name != "lstat" and options.get("follow_symlinks", True)
                self._watch.look(place, follow)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._busy.now = True
        try:
            with suppress(OSError):  # no working folder, say: then the call fails, too
                yield
        finally:
            del self._busy.now

    def _absolute(self, path: Any, folder: Any = None) -> list[str]:
        """Return the absolute paths of a function's argument, which may be an open folder."""
        if isinstance(path, int):
            return self._folders.find(path, _path_of(path))
        name = os.fsdecode(path)
        if name.startswith("/"):
            return [absolute(name, os.getpid())]
        if isinstance(folder, int) and folder >= 0:
            return join(self._folders.find(folder, _path_of(folder)), name)
        return join(self._folders.find(".", os.getcwd()), name)

    # Handlers; `__` in a handler's name stands for "." in the event's name

    def _on_open(self, path: Any, mode: Any, flags: Any) -> None:
        for place in [] if isinstance(path, int) else self._absolute(path):
            if (flags or 0) & (os.O_WRONLY | os.O_RDWR):
                self._watch.open_to_write(place, flags)
                continue
            self._watch.look(place)
            if os.path.isdir(place):
                self._folders.add(place)
            if place.endswith(".pyc"):  # then the source is not opened
                with suppress(ValueError):
                    self._watch.look(importlib.util.source_from_cache(place))

    def _on_os__listdir(self, path: Any) -> None:
        for place in self._absolute("." if path is None else path):
            self._watch.list(place)

    _on_os__scandir = _on_os__listdir

    def _on_os__mkdir(self, path: Any, mode: int, folder: int) -> None:
        for place in self._absolute(path, folder):
            self._watch.create(place)

    def _on_os__remove(self, path: Any, folder: int) -> None:
        for place in self._absolute(path, folder):
            self._watch.remove(place)

    _on_os__rmdir = _on_os__remove

    def _on_os__rename(
        self, old: Any, new: Any, old_folder: int, new_folder: int
    ) -> None:
        for source in self._absolute(old, old_folder):
            for target in self._absolute(new, new_folder):
                self._watch.rename(source, target)

    def _on_os__link(
        self, old: Any, new: Any, old_folder: int, new_folder: int
    ) -> None:
        for source in self._absolute(old, old_folder):
            self._watch.look(source)
        for target in self._absolute(new, new_folder):
            self._watch.create(target)

    def _on_os__symlink(self, target: Any, path: Any, folder: int) -> None:
        for place in self._absolute(path, folder):
            self._watch.link(place)

    def _on_os__chdir(self, path: Any) -> None:
        for place in self._absolute(path):
            self._watch.look(place)
            self._folders.add(place)

    def _on_os__truncate(self, path: Any, length: int) -> None:
        for place in self._absolute(path):
            self._watch.change(place)

    def _on_os__getxattr(self, path: Any, name: Any) -> None:
        for place in self._absolute(path):
            self._watch.look(place)

    def _on_sqlite3__connect(self, path: Any) -> None:
        if path and path not in (":memory:", b":memory:") and os.path.exists(path):
            self._on_open(path, None, os.O_RDWR)

    def _on_ctypes__dlopen(self, name: Any) -> None:
        if name and os.sep in os.fsdecode(name):
            self._on_open(name, None, 0)

    def _on_os__fork(self) -> None:
        self._watch.unfollow("a fork")

    _on_os__forkpty = _on_os__fork

    def _start(self, args: tuple[Any, ...]) -> None:
        command = args[0] if args else ""
        name = (
            os.fsdecode(command)
            if isinstance(command, str | bytes | os.PathLike)
            else str(command)
        )
        self._watch.processes.append(name)
        self._watch.unfollow(f"a process ({name})")

    def _on_socket__connect(self, socket: Any, address: Any) -> None:
        if address is None:  # the socket is connected already
            return
        if isinstance(address, str | bytes):
            self._watch.unfollow(f"another process ({os.fsdecode(address)})")
        else:
            self._watch.unfollow(f"the network ({':'.join(map(str, address[:2]))})")

    _on_socket__sendto = _on_socket__sendmsg = _on_socket__connect


def _path_of(descriptor: int) -> str:
    """Return the path of an open file."""
    if sys.platform == "darwin":
        return os.fsdecode(
            fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")
        )
    return os.readlink(f"/proc/self/fd/{descriptor}")
