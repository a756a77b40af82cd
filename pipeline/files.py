"""Writing files so that a reader sees the old content or the new, never half of one."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def temporary(folder: Path) -> Iterator[BinaryIO]:
    """A new binary file in `folder`, gone at the end of the block unless `publish` moved it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
    try:
        with open(path, "xb") as file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def publish(file: BinaryIO, target: Path, mode: int) -> None:
    """Gives a `temporary` of the same filesystem its final name, in place of what had it."""
    file.flush()
    os.chmod(file.name, mode)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file.name, target)


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block ends, and vanishes when it raises."""
    with temporary(path.parent) as file:
        yield file
        publish(file, path, mode)


def write_atomically(path: Path, data: bytes) -> None:
    with replacing(path) as file:
        file.write(data)


def copy_atomically(source: Path, target: Path) -> None:
    """Copies the content, in the kernel where the filesystem can (a reflink where it shares
    extents); never a hard link, since a user may edit the copy."""
    with replacing(target) as file, open(source, "rb") as content:
        _copy(content, file)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    try:
        while os.copy_file_range(source.fileno(), target.fileno(), 1 << 30):
            pass
    except OSError:  # across filesystems, or one that cannot
        source.seek(0)
        target.seek(0)
        target.truncate()
        shutil.copyfileobj(source, target, 1 << 20)
