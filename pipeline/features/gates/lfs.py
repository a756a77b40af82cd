"""Replaces Git LFS pointers with their files, without the LFS filter, which would download them.

A pointer is a small text file with the SHA-256 and the size of a file
(https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md). The repository stores fetched files
under their SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

_LONGEST = 1024  # bytes of a pointer
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*"
    rb"oid sha256:([0-9a-f]{64})\nsize ([0-9]{1,18})\n"
)
_PIECE = 1 << 20


def fill_pointers(tree: Path, objects: Path) -> None:
    """Replace each pointer below a folder with its content, if the object exists and is intact.

    Any other pointer stays, and its reader reports it.


    Args:
        objects: the folder of objects, `lfs/objects` of the repository.
    """
    if not objects.is_dir():
        return
    for folder, _, names in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):
                if pointer := _read_pointer(path):
                    oid, size = pointer[1].decode(), int(pointer[2])
                    _fill(path, objects / oid[:2] / oid[2:4] / oid, oid, size)


def _read_pointer(path: Path) -> re.Match[bytes] | None:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LONGEST:
        return None
    return _POINTER.fullmatch(path.read_bytes())


def _fill(path: Path, source: Path, oid: str, size: int) -> None:
    """Copy an object to a path, if it has its digest. Raises OSError."""
    if source.is_symlink() or source.stat().st_size != size:
        return
    filled = path.with_name(f"{path.name}.{oid}")
    hasher = hashlib.sha256()
    try:
        with open(source, "rb") as file, open(filled, "xb") as copy:
            while piece := file.read(_PIECE):
                hasher.update(piece)
                copy.write(piece)
        if hasher.hexdigest() == oid:
            filled.chmod(path.stat().st_mode)
            filled.replace(path)
    finally:
        filled.unlink(missing_ok=True)
