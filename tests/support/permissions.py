"""Makes processes obey file permissions, as users' processes do and root's don't."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION = 0x20080522  # version of the structures of capset(2)


def obey_permissions() -> None:
    """Drop all capabilities of this process, so that even root can't write to read-only files."""
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def mode(folders: list[Path], bits: int) -> Iterator[None]:
    """Give folders these permissions within the context."""
    before = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        os.chmod(folder, bits)
    try:
        yield
    finally:
        for folder, bits_before in zip(folders, before, strict=True):
            os.chmod(folder, bits_before)


def folders_of(root: Path) -> list[Path]:
    """Return a folder and all folders below it, deepest first."""
    below = [path for path in root.rglob("*") if path.is_dir()]
    return [*sorted(below, reverse=True), root]
