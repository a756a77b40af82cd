"""Files as lists of blobs and of bytes between them: large blobs that a file is made of are in the
store once, not again within the file.

A result names such a file's digest, as it does of one that is a blob itself, and its pieces.
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
# Bytes; smaller blobs are fewer files, and so fewer questions to a remote.
_SHARED_FROM = 1 << 18


class JoinedFile(NamedTuple):
    """A file that was put together. `pieces` are empty where it is a blob of the store itself;
    otherwise it is the `scratch` file at `path` for as long as `joined` holds it, and `digests` are
    those of its blobs, by their offset and size in bytes."""

    path: Path
    digest: Digest
    size: int
    pieces: list[Piece]
    digests: dict[tuple[int, int], Digest]
    scratch: BinaryIO | None = None

    def place(self, path: Path, root: Path) -> bool:
        """Make the scratch file one of a folder below `root`, in place of what is there, while it
        is held: by moving it, or into another filesystem by a copy. Return whether there is one.
        Raises OSError."""
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
    """Return bytes as a piece of a file."""
    if len(data) > _SHORT:
        return "blob", store.put(data)
    return "bytes", data.hex()


def iter_content(
    pieces: Iterable[Piece], store: BlobStore, verifies: bool = True
) -> Iterator[bytes]:
    """Yield the content of a file, its blobs verified as by `BlobStore.stream`. Raises
    MissingBlobError."""
    for piece in pieces:
        if piece[0] == "blob":
            yield from store.stream(piece[1], verifies)
        else:
            yield bytes.fromhex(piece[1])


def find_size(pieces: Iterable[Piece], store: BlobStore) -> int:
    """Return the bytes of a file. Raises MissingBlobError."""
    return sum(_size(piece, store) for piece in pieces)


def join_pieces(pieces: Iterable[Piece], store: BlobStore) -> tuple[Digest, int]:
    """Store a file as one blob; return its digest and size in bytes. Raises MissingBlobError."""
    with store.writer() as file:
        for chunk in iter_content(pieces, store):
            file.write(chunk)
    return file.digest, file.size


@contextmanager
def joined(pieces: Iterable[Piece], store: BlobStore) -> Iterator[JoinedFile]:
    """Put a file together, to be read: as a blob, or, where large blobs are in it, for as long as
    the context lasts. Raises MissingBlobError."""
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
    """Write a file of a folder below `root`, in place of what is there.

    Raises MissingBlobError where a piece is missing, or the file is not the one of this digest.
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
                pass  # a bad one is dropped, and missing
            problem = f"the pieces of {path.name} do not add up to {whole}"
            raise MissingBlobError(f"store {store.root}: {problem}") from None


def blobs_of_files(result: Mapping[str, Any]) -> list[Digest]:
    """Return the blobs that the files of a result are made of."""
    joined = result.get("joined", {})
    whole = [blob for name, blob in result["files"].items() if name not in joined]
    parts = [
        value for pieces in joined.values() for kind, value in pieces if kind == "blob"
    ]
    return list(dict.fromkeys([*whole, *parts]))


def _merge_small(pieces: Iterable[Piece], store: BlobStore) -> Iterator[Piece]:
    """Yield pieces of which each is a large blob, or stands between two: then it is one."""
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
