"""The kernel's view: system calls of a process that wait until another process has looked at them.

This is seccomp's user notification (Linux 5.6, x86_64 and aarch64; `man 2 seccomp_unotify`) through
ctypes. Calls are never changed, only seen: a process that changes its own memory between the
inspection and the call would deceive the supervisor. So this follows honest code, and is not a
sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

# The numbers of the calls to watch, on x86_64 and aarch64; 0 if the machine lacks a call.
_CALLS: Mapping[str, tuple[int, int]] = {
    "open": (2, 0),
    "stat": (4, 0),
    "lstat": (6, 0),
    "access": (21, 0),
    "shmat": (30, 196),
    "connect": (42, 203),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "bind": (49, 200),
    "execve": (59, 221),
    "msgrcv": (70, 188),
    "truncate": (76, 45),
    "getdents": (78, 0),
    "chdir": (80, 49),
    "rename": (82, 0),
    "mkdir": (83, 0),
    "rmdir": (84, 0),
    "creat": (85, 0),
    "link": (86, 0),
    "unlink": (87, 0),
    "symlink": (88, 0),
    "readlink": (89, 0),
    "mknod": (133, 0),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "getdents64": (217, 61),
    "mq_open": (240, 180),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "linkat": (265, 37),
    "symlinkat": (266, 36),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "unshare": (272, 97),
    "open_by_handle_at": (304, 265),
    "sendmmsg": (307, 269),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "renameat2": (316, 276),
    "execveat": (322, 281),
    "statx": (332, 291),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "faccessat2": (439, 439),
}
# For each machine: its index in the tuples above, AUDIT_ARCH_*, and the number of seccomp itself.
_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
_PIDFD_GETFD = 438
_X32 = 0x40000000
_AT_EMPTY_PATH = 0x1000
# A call with this flag in this argument asks about an open file, which was seen when opened.
_BY_DESCRIPTOR = {"newfstatat": 3, "statx": 2}
_ADDRESS = {"sendto": 4}  # calls seen only if this argument is not null

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1

# Opcodes of classic BPF.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in seccomp_data


class SystemCall(NamedTuple):
    """A system call that waits for an answer; `name` is "" if it is for another architecture."""

    identity: int
    thread: int
    name: str
    arguments: tuple[int, ...]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def prepare() -> None:
    """Make the filter and load the C library for `install`, in all forks of this process."""
    if platform.machine() in _MACHINES:
        _make_filter(_MACHINES[platform.machine()][1])
        _libc()


def install() -> int:
    """Install the filter in this thread and everything that it starts.

    Returns the descriptor at which the calls arrive; each call waits until another process answers.
    Raises OSError.
    """
    _, arch, number = _MACHINES[platform.machine()]
    code, libc = _make_filter(arch), _libc()
    program = _Program(len(code) // 8, code)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    listener: int = libc.syscall(
        number, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program)
    )
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _names(arch: int) -> Mapping[int, str]:
    """Return the names of an architecture's calls, by number."""
    (place,) = (place for place, machine, _ in _MACHINES.values() if machine == arch)
    return {numbers[place]: name for name, numbers in _CALLS.items() if numbers[place]}


@cache
def _make_filter(arch: int) -> bytes:
    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("=HBBI", code, then, otherwise, value)

    notify, allow = step(_RETURN, _NOTIFY), step(_RETURN, _ALLOW)
    parts = [step(_LOAD, _ARCH), step(_EQUAL, arch, 1), notify, step(_LOAD, _NUMBER)]
    parts += [step(_AT_LEAST, _X32, 0, 1), notify]
    for number, name in _names(arch).items():
        if name in _BY_DESCRIPTOR:
            body = step(_LOAD, _ARGUMENTS + 8 * _BY_DESCRIPTOR[name])
            body += step(_ANY_BIT, _AT_EMPTY_PATH, 1) + notify + allow
        elif name in _ADDRESS:
            low = _ARGUMENTS + 8 * _ADDRESS[name]
            body = step(_LOAD, low) + step(_EQUAL, 0, 0, 2) + step(_LOAD, low + 4)
            body += step(_EQUAL, 0, 1) + notify + allow
        else:
            body = notify
        parts += [step(_EQUAL, number, 0, len(body) // 8), body]
    return b"".join([*parts, allow])


class Listener:
    """The supervisor's end of a filter, which receives the calls of its processes."""

    def __init__(self, process: int, number: int) -> None:
        """Take over the descriptor `number` of a process, given its pidfd. Raises OSError."""
        self._arch = _MACHINES[platform.machine()][1]
        self._names = _names(self._arch)
        self.descriptor: int = _libc().syscall(_PIDFD_GETFD, process, number, 0)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        self._call = bytearray(80)

    def receive(self) -> SystemCall | None:
        """Return the next call, or None if its process has died in the meantime."""
        self._call[:] = bytes(80)
        try:
            fcntl.ioctl(self.descriptor, _RECEIVE, self._call)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        identity, thread, _, number, arch, _, *arguments = struct.unpack(
            "=QIIiIQ6Q", self._call
        )
        name = self._names.get(number, "") if arch == self._arch else ""
        return SystemCall(identity, thread, name, tuple(arguments))

    def proceed(self, call: SystemCall) -> None:
        """Let a call continue."""
        with suppress(FileNotFoundError):  # its process has died, or a signal came
            answer = struct.pack("=QqiI", call.identity, 0, 0, _CONTINUE)
            fcntl.ioctl(self.descriptor, _SEND, answer)

    def close(self) -> None:
        os.close(self.descriptor)
