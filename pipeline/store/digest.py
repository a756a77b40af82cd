"""Content digests of bytes, files and JSON values.

A digest is BLAKE3, 256 bits, as 64 lower-case hexadecimal digits. This module knows nothing about
the meaning of what it hashes, and never uses `hash()`, `repr()` or pickle, whose output varies
between processes.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import IO, Any, NewType, TypeVar

from blake3 import blake3

Digest = NewType("Digest", str)
AnyBytes = TypeVar("AnyBytes", bytes, memoryview)

# Bytes; large files are read this much at a time, into the same buffer.
PIECE = 1 << 18
_LARGE = 1 << 32  # bytes; larger files are checked for holes
_MOST_HOLES = 8  # largest ratio of a file's size to its allocated bytes


class WrongContentError(Exception):
    """Content does not match its digest."""


def hash_bytes(data: bytes | memoryview) -> Digest:
    """Return the digest of bytes."""
    return Digest(blake3(data).hexdigest())


def hash_pieces(pieces: Iterable[bytes | memoryview]) -> Digest:
    """Return the digest of bytes that come in pieces."""
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
    return Digest(hasher.hexdigest())


def hash_stream(file: IO[bytes]) -> Digest:
    """Return the digest of the rest of an open file, read in pieces."""
    return hash_pieces(iter(partial(file.read, PIECE), b""))


def hash_file(path: Path) -> Digest:
    """Return the digest of a file's content. Raises OSError."""
    status = path.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        # A FIFO would block, and a device might never end.
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
    ) as file:  # mapping a file takes half as long again
        while size := file.readinto(memory):
            hasher.update(memory[:size])
    return Digest(hasher.hexdigest())


def _check_holes(path: Path, size: int) -> None:
    """Raise OSError if a large file is almost entirely holes, which would take hours to read.

    A file system that doesn't report holes counts as having none.
    """
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
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE):
            yield piece


def verified(pieces: Iterable[AnyBytes], expected: Digest) -> Iterator[AnyBytes]:
    """Yield pieces of content, hashing them on the way.

    Raises WrongContentError after the last piece if the content doesn't match `expected`; the
    caller must then discard whatever it made from it.
    """
    hasher = blake3()
    for piece in pieces:
        hasher.update(piece)
        yield piece
    if hasher.hexdigest() != expected:
        raise WrongContentError(expected)


def hash_json(value: Any) -> Digest:
    """Return the digest of the canonical form of a JSON value."""
    return hash_bytes(canonical_json(value))


# Cycles aren't looked for, which would take a quarter of the time: JSON values have none.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False
)


def canonical_json(value: Any) -> bytes:
    """Encode a JSON value in its canonical form: sorted keys, no spaces, ASCII, no NaN."""
    return _ENCODER.encode(value).encode("ascii")


def join_fields(fields: Mapping[str, bytes]) -> bytes:
    """Return the canonical form of a record from those of its fields."""
    texts = (
        b"%b:%b" % (encode_basestring_ascii(name).encode(), fields[name])
        for name in sorted(fields)
    )
    return b"{%b}" % b",".join(texts)
