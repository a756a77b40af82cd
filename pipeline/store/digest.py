"""Content digests of bytes, files and JSON values.

A digest is BLAKE3, 256 bits, as 64 lower-case hexadecimal digits. This module knows nothing of
what is hashed, and never uses `hash()`, `repr()` or pickle, whose output varies between processes.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NewType, TypeVar

from blake3 import blake3

Digest = NewType("Digest", str)
AnyBytes = TypeVar("AnyBytes", bytes, memoryview)

# Bytes; of a large file, this much is read at a time, into the same memory.
PIECE = 1 << 18
_LARGE = 1 << 32  # bytes of a file, from which on holes are looked for
_MOST_HOLES = 8  # times the bytes that are stored


class WrongContentError(Exception):
    """Content is not what its digest names."""


def hash_bytes(data: bytes | memoryview) -> Digest:
    """Hash bytes."""
    return Digest(blake3(data).hexdigest())


def hash_pieces(pieces: Iterable[bytes | memoryview]) -> Digest:
    """Hash bytes that come in pieces."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return Digest(hasher.hexdigest())


def hash_stream(file: IO[bytes]) -> Digest:
    """Hash what is left to read of a file, in pieces."""
    return hash_pieces(iter(partial(file.read, PIECE), b""))


def hash_file(path: Path) -> Digest:
    """Hash the content of a file. Raises OSError."""
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        # A FIFO would block, a device not end.
        raise OSError(errno.EINVAL, "is not a file", str(path))
    if status.st_size < PIECE:
        return hash_bytes(path.read_bytes())
    if (
        status.st_size > _LARGE
        and 512 * status.st_blocks < status.st_size // _MOST_HOLES
    ):
        _check_holes(path, status.st_size)
    hasher = blake3()
    memory = memoryview(bytearray(PIECE))
    with open(
        path, "rb", buffering=0
    ) as file:  # to map a file takes half as long again
        while size := file.readinto(memory):
            hasher.update(memory[:size])
    return Digest(hasher.hexdigest())


def _check_holes(path: Path, size: int) -> None:
    """Raise OSError for a large file that is almost nothing but holes, which would be read for
    hours. A file system that tells of no holes has none."""
    stored = end = 0
    with open(path, "rb", buffering=0) as file, suppress(OSError):
        while stored < size // _MOST_HOLES:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            stored += end - begin
    if stored < size // _MOST_HOLES:
        why = f"has {size} bytes, but only {stored} are allocated"
        raise OSError(errno.EFBIG, why, str(path))


def read_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises OSError."""
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            yield piece


def verified(pieces: Iterable[AnyBytes], expected: Digest) -> Iterator[AnyBytes]:
    """Yield pieces of content. Raises WrongContentError after the last, if `expected` names other
    content; what was made of it must then be thrown away."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
        yield piece
    if hasher.hexdigest() != expected:
        raise WrongContentError(expected)


def hash_json(value: Any) -> Digest:
    """Hash the canonical form of a JSON value."""
    return hash_bytes(canonical_json(value))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Any) -> bytes:
    """Encode a JSON value in its canonical form: sorted keys, no spaces, ASCII, no NaN."""
    return _ENCODER.encode(value).encode("ascii")
