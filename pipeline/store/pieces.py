"""Files as lists of pieces: blobs, and the bytes between them.

A large blob that is part of a file is thus stored once, not again within the file. A result names
the digest of such a file, like that of a file which is a single blob, and also its pieces.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pipeline.store import digest
from pipeline.store.blobs import BlobStore, BlobWriter, MissingBlobError
from pipeline.store.digest import Digest
from pipeline.store.files import copy_atomically, make_folder, publish, replacing
from pipeline.store.forms import Piece as Piece

_SHORT = 64  # bytes; shorter than a key of named data
# Bytes; smaller blobs are merged, for fewer files and so fewer requests to a remote.
_SHARED_FROM = 1 << 18


class JoinedFile(NamedTuple):
    """A file that was put together from pieces.

    If `pieces` is empty, the file is a blob of the store. Otherwise it is the `scratch` file at
    `path`, which exists while the `joined` block lasts, and `digests` maps the offset and size in
    bytes of each of its blobs to the blob's digest.
    """

    path: Path
    digest: Digest
    size: int
    pieces: list[Piece]
    digests: dict[tuple[int, int], Digest]
    scratch: BinaryIO | None = None

    def place(self, path: Path, root: Path) -> bool:
        """Move or copy the scratch file to a path below `root`, replacing what is there.

        It is moved within a filesystem, and copied to another one. Call it only within the `joined`
        block. Returns whether there is a scratch file. Raises OSError.
        """
        if self.scratch is None:
            return False
        make_folder(path.parent, root)
        if os.fstat(self.scratch.fileno()).st_dev == path.parent.stat().st_dev:
            with suppress(OSError):  # two mounts of one filesystem
                publish(self.scratch, path, 0o644, durable=True)
                return True
        copy_atomically(self.path, path, root)
        return True


def make_piece(data: bytes, store: BlobStore) -> Piece:
    """Return bytes as a piece of a file: inline if they are short, otherwise as a stored blob."""
    if len(data) > _SHORT:
        return "blob", store.put(data)
    return "bytes", data.hex()


def iter_content(
    pieces: Iterable[Piece], store: BlobStore, verifies: bool = True
) -> Iterator[bytes]:
    """Yield the content of a file, its blobs verified as in `BlobStore.stream`.

    Raises MissingBlobError.
    """
    for piece in pieces:
        if piece[0] == "blob":
            yield from store.stream(piece[1], verifies)
        else:
            yield bytes.fromhex(piece[1])


def find_size(pieces: Iterable[Piece], store: BlobStore) -> int:
    """Return the size of a file in bytes. Raises MissingBlobError."""
    return sum(_size(piece, store) for piece in pieces)


def join_pieces(pieces: Iterable[Piece], store: BlobStore) -> tuple[Digest, int]:
    """Store a file as one blob; return its digest and size in bytes. Raises MissingBlobError."""
    with store.writer() as file:
        for chunk in iter_content(pieces, store):
            file.write(chunk)
    return file.digest, file.size


@contextmanager
def joined(pieces: Iterable[Piece], store: BlobStore) -> Iterator[JoinedFile]:
    """Put a file together for reading. Raises MissingBlobError.

    The file becomes a blob or, if it contains large blobs, a scratch file that exists until the
    block ends.
    """
    pieces = list(pieces)
    if not any(_is_large(piece, store) for piece in pieces):
        whole, size = join_pieces(pieces, store)
        yield JoinedFile(store.blob_path(whole), whole, size, [], {})
        return
    merged = list(_merge_small(pieces, store))
    with store.scratch() as file:
        writer, digests = BlobWriter(file), {}
        for piece in merged:
            begin = writer.size
            for chunk in iter_content([piece], store):
                writer.write(chunk)
            if piece[0] == "blob":
                digests[begin, writer.size - begin] = piece[1]
        file.flush()
        yield JoinedFile(
            Path(file.name), writer.digest, writer.size, merged, digests, file
        )


def write_joined(
    pieces: Iterable[Piece], whole: Digest, store: BlobStore, path: Path, root: Path
) -> None:
    """Write a file from its pieces to a path below `root`, replacing what is there.

    Raises MissingBlobError if a piece is missing, or if the file doesn't match the digest `whole`.
    """
    pieces = list(pieces)
    with replacing(path, durable=True, root=root) as file:
        try:
            for chunk in digest.verified(
                iter_content(pieces, store, verifies=False), whole
            ):
                file.write(chunk)
        except digest.WrongContentError:
            for _ in iter_content(pieces, store):
                pass  # raises at a bad blob, which is dropped
            problem = f"the pieces of {path.name} do not add up to {whole}"
            raise MissingBlobError(f"store {store.root}: {problem}") from None


def blobs_of_files(result: Mapping[str, Any]) -> list[Digest]:
    """Return the blobs from which the files of a result are made."""
    joined = result.get("joined", {})
    whole = [blob for name, blob in result["files"].items() if name not in joined]
    parts = [
        value for pieces in joined.values() for kind, value in pieces if kind == "blob"
    ]
    return list(dict.fromkeys([*whole, *parts]))


def _merge_small(pieces: Iterable[Piece], store: BlobStore) -> Iterator[Piece]:
    """Yield each large blob, and everything between two of them merged into one piece."""
    for large, group in groupby(pieces, lambda piece: _is_large(piece, store)):
        between = list(group)
        if large:
            yield from between
        elif find_size(between, store) > _SHORT:
            yield "blob", join_pieces(between, store)[0]
        else:
            yield "bytes", b"".join(iter_content(between, store)).hex()


def _is_large(piece: Piece, store: BlobStore) -> bool:
    return _size(piece, store) >= _SHARED_FROM


def _size(piece: Piece, store: BlobStore) -> int:
    if piece[0] == "bytes":
        return len(piece[1]) // 2
    if not store.has(piece[1]):
        raise MissingBlobError(f"store {store.root}: blob {piece[1]} is missing")
    return store.blob_path(piece[1]).stat().st_size
