"""Records the files and sockets that system calls touch."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping

from pipeline.features.tracing.paths import OpenedFolders, absolute, join
from pipeline.features.tracing.seccomp import SystemCall
from pipeline.features.tracing.watch import FileAccessLog
from pipeline.plan.places import FOLDER

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW = -100, 0x100
_O_PATH = 0o10000000
_LONGEST = 4096  # bytes of a path, and of a page


# What a system call does; for each file, the argument numbers of its folder's descriptor (None is
# the working folder) and of its path; and the argument number of its flags.
_Operation = tuple[str, tuple[tuple[int | None, int], ...], int | None]


def _one(
    does: str, folder: int | None, path: int, flags: int | None = None
) -> _Operation:
    return does, ((folder, path),), flags


_OPERATIONS: Mapping[str, _Operation] = {
    "open": _one("open", None, 0, 1),
    "openat": _one("open", 0, 1, 2),
    "openat2": _one("open", 0, 1, 2),
    "creat": _one("creat", None, 0),
    "stat": _one("look", None, 0),
    "lstat": _one("lstat", None, 0),
    "newfstatat": _one("look", 0, 1, 3),
    "statx": _one("look", 0, 1, 2),
    "access": _one("look", None, 0),
    "faccessat": _one("look", 0, 1),
    "faccessat2": _one("look", 0, 1, 3),
    "getxattr": _one("look", None, 0),
    "lgetxattr": _one("lstat", None, 0),
    "listxattr": _one("look", None, 0),
    "llistxattr": _one("lstat", None, 0),
    "readlink": _one("readlink", None, 0),
    "readlinkat": _one("readlink", 0, 1),
    "chdir": _one("chdir", None, 0),
    "execve": _one("execute", None, 0),
    "execveat": _one("execute", 0, 1),
    "truncate": _one("truncate", None, 0),
    "mkdir": _one("create", None, 0),
    "mkdirat": _one("create", 0, 1),
    "mknod": _one("create", None, 0),
    "mknodat": _one("create", 0, 1),
    "symlink": _one("symlink", None, 1),
    "symlinkat": _one("symlink", 1, 2),
    "unlink": _one("remove", None, 0),
    "unlinkat": _one("remove", 0, 1),
    "rmdir": _one("remove", None, 0),
    "rename": ("rename", ((None, 0), (None, 1)), None),
    "renameat": ("rename", ((0, 1), (2, 3)), None),
    "renameat2": ("rename", ((0, 1), (2, 3)), None),
    "link": ("link", ((None, 0), (None, 1)), None),
    "linkat": ("link", ((0, 1), (2, 3)), None),
}
_UNFOLLOWED = {
    "": "a program of another architecture",
    "shmat": "shared memory",
    "msgrcv": "a message queue",
    "mq_open": "a message queue",
    "io_uring_setup": "io_uring",
    "open_by_handle_at": "a file that is opened by its handle",
    "process_vm_readv": "another process's memory",
    "pidfd_getfd": "another process's files",
    **dict.fromkeys(
        ("mount", "move_mount", "open_tree", "unshare", "setns"), "other mounts"
    ),
    **dict.fromkeys(("chroot", "pivot_root"), "another root folder"),
}
# The C library asks these for users and hosts before it reads /etc.
_NAME_SERVICES = (
    "/var/run/nscd/",
    "/run/nscd/",
    "/run/systemd/userdb/",
    "/var/lib/sss/",
)


class Supervisor:
    """Tells a watch which files and sockets system calls touch.

    A process may die at any moment, so nothing here relies on its files in /proc.
    """

    def __init__(self, watch: FileAccessLog) -> None:
        self._watch = watch
        self._folders = OpenedFolders()

    def see(self, call: SystemCall) -> None:
        try:
            self._see(call)
        except OSError as error:
            # Any other error: its process has died, or the call will fail for the address that it
            # passes.
            if error.errno in (errno.EPERM, errno.EACCES):
                self._watch.unfollow("a program that can't be looked into")

    def _see(self, call: SystemCall) -> None:
        if (operation := _OPERATIONS.get(call.name)) is not None:
            self._see_paths(call, operation)
        elif call.name in ("getdents", "getdents64"):
            for folder in self._names(
                f"/proc/{call.thread}/fd/{_signed(call.arguments[0])}"
            ):
                self._watch.list(folder)
        elif call.name == "connect":
            self._connect(call, *call.arguments[1:3])
        elif call.name == "sendto":
            self._connect(call, *call.arguments[4:6])
        elif call.name in ("sendmsg", "sendmmsg"):
            count = call.arguments[2] if call.name == "sendmmsg" else 1
            for number in range(min(count, 1024)):
                header = _read(call.thread, call.arguments[1] + 64 * number, 12)
                if len(header) == 12:
                    self._connect(call, *struct.unpack("=QI", header))
        elif call.name == "bind":
            address = _read(call.thread, call.arguments[1], min(call.arguments[2], 128))
            if path := _socket_path(address):
                for absolute in self._absolute(call.thread, _AT_FDCWD, path):
                    self._watch.create(absolute)
        else:
            self._watch.unfollow(_UNFOLLOWED[call.name])

    def _see_paths(self, call: SystemCall, operation: _Operation) -> None:
        paths = []
        does, places, flags_place = operation
        for folder_place, path_place in places:
            folder = _AT_FDCWD
            if folder_place is not None:
                folder = _signed(call.arguments[folder_place])
            path = os.fsdecode(_read_string(call.thread, call.arguments[path_place]))
            if not path:
                return
            paths.append(self._absolute(call.thread, folder, path))
        flags = 0 if flags_place is None else call.arguments[flags_place]
        if call.name == "openat2":
            flags = int.from_bytes(_read(call.thread, flags, 8), "little")
        if len(paths) == 2:
            for old in paths[0]:
                for new in paths[1]:
                    self._move(does, old, new)
        else:
            for path in paths[0]:
                self._do(does, path, flags)

    def _do(self, does: str, path: str, flags: int) -> None:
        watch = self._watch
        if does == "open" and (flags & os.O_ACCMODE == 0 or flags & _O_PATH):
            watch.look(path, follow=not flags & os.O_NOFOLLOW)
            if flags & os.O_DIRECTORY or watch.seen.get(("file", path)) == FOLDER:
                self._folders.add(path)
        elif does == "open" and flags & os.O_TMPFILE != os.O_TMPFILE:
            watch.open_to_write(path, flags)
        elif does == "creat":
            watch.open_to_write(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        elif does in ("look", "lstat"):
            watch.look(path, follow=does == "look" and not flags & _AT_SYMLINK_NOFOLLOW)
        elif does == "readlink":
            watch.read_link(path)
        elif does == "chdir":
            watch.look(path)
            self._folders.add(path)
        elif does == "execute":
            watch.start(path)
        elif does == "truncate":
            watch.change(path)
        elif does == "create":
            watch.create(path)
        elif does == "symlink":
            watch.link(path)
        elif does == "remove":
            watch.remove(path)

    def _move(self, does: str, old: str, new: str) -> None:
        if does == "rename":
            self._watch.rename(old, new)
        else:
            self._watch.look(old)
            self._watch.create(new)

    def _absolute(self, thread: int, folder: int, path: str) -> list[str]:
        if path.startswith("/"):
            return [absolute(path, thread)]
        place = "cwd" if folder == _AT_FDCWD else f"fd/{folder}"
        return join(self._names(f"/proc/{thread}/{place}"), path)

    def _names(self, link: str) -> list[str]:
        return self._folders.find(link, os.readlink(link))

    def _connect(self, call: SystemCall, address: int, length: int) -> None:
        if not address or not length:
            return
        data = _read(call.thread, address, min(length, 128))
        if path := _socket_path(data):
            places = self._absolute(call.thread, _AT_FDCWD, path)
            if any(
                p.startswith(_NAME_SERVICES) or self._watch.is_own(p) for p in places
            ):
                return
            if not any(map(os.path.exists, places)):
                return
            self._watch.unfollow(f"another process ({path})")
        elif name := _describe_address(data):
            self._watch.unfollow(f"the network ({name})")


def _signed(argument: int) -> int:
    """Return an argument as a C `int`; its upper half may hold anything."""
    return int.from_bytes(
        (argument & 0xFFFFFFFF).to_bytes(4, "little"), "little", signed=True
    )


def _read(thread: int, address: int, length: int) -> bytes:
    descriptor = os.open(f"/proc/{thread}/mem", os.O_RDONLY)
    try:
        return os.pread(descriptor, length, address)
    finally:
        os.close(descriptor)


def _read_string(thread: int, address: int) -> bytes:
    first = _LONGEST - address % _LONGEST  # the next page may not be there
    piece = _read(thread, address, first)
    if b"\0" not in piece:
        piece += _read(thread, address + first, _LONGEST)
    return piece.partition(b"\0")[0]


def _socket_path(address: bytes) -> str:
    """Return the path of a local socket, or "" if it is not local or has no file."""
    if len(address) < 3 or int.from_bytes(address[:2], "little") != socket.AF_UNIX:
        return ""
    return os.fsdecode(address[2:].partition(b"\0")[0])


def _describe_address(address: bytes) -> str:
    """Return a description of a network address, or "" for a local one."""
    family = int.from_bytes(address[:2], "little")
    port = int.from_bytes(address[2:4], "big")
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, address[4:8])}:{port}"
    if family == socket.AF_INET6:
        return f"[{socket.inet_ntop(socket.AF_INET6, address[8:24])}]:{port}"
    local = (socket.AF_UNSPEC, socket.AF_UNIX, socket.AF_NETLINK)
    return "" if family in local else f"address family {family}"
