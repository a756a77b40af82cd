"""Files as lists of blobs, and the same file with other blobs. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pipeline.store.digest import Digest, hash_json
from pipeline.store.store import Store

Json = Mapping[str, Any]
Piece: TypeAlias = tuple[Literal["blob", "bytes"], str]  # a digest, or bytes in hexadecimal
_SHORT = 64  # bytes; shorter than a key of named data
_KEY = re.compile(rb"[0-9a-f]{64}")


def make_piece(data: bytes, store: Store) -> Piece:
    """Return bytes as a piece of a file."""
    return ("blob", store.put(data)) if len(data) > _SHORT else ("bytes", data.hex())


def join_pieces(pieces: Iterable[Piece], store: Store) -> tuple[Digest, int]:
    """Write a file from its pieces, blobs verified; return its digest and size in bytes.

    Raises MissingBlobError.
    """
    with store.writer() as file:
        for kind, value in pieces:
            chunks = store.stream(Digest(value)) if kind == "blob" else [bytes.fromhex(value)]
            for chunk in chunks:
                file.write(chunk)
    return file.digest, file.size


def hash_shape(objects: Sequence[Json]) -> Digest:
    """Hash all that linking looks at in objects: sizes of blobs, and which of them, and of the keys
    of named data, are one. Contents, which it doesn't look at, are numbered."""
    numbers: dict[str, int] = {}

    def shape(value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: shape(each, key) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [shape(each, name) for each in value]
        if name in ("digest", "key", "keys"):
            return numbers.setdefault(value, len(numbers))
        return value

    return hash_json([[each["program"]["digest"], shape(each)] for each in objects])


def pair_objects(
    old: Sequence[Json], new: Sequence[Json]
) -> tuple[dict[Digest, Digest], dict[str, str]]:
    """Return which blob, and which key of named data, stands where one stood in objects of the same
    shape."""
    blobs: dict[Digest, Digest] = {}
    keys: dict[str, str] = {}

    def walk(one: Any, other: Any, name: str = "") -> None:
        if isinstance(one, Mapping):
            for key in one:
                walk(one[key], other[key], key)
        elif isinstance(one, list | tuple):
            for pair in zip(one, other, strict=True):
                walk(*pair, name)
        elif name == "digest":
            blobs[one] = other
        elif name in ("key", "keys"):
            keys[one] = other

    for pair in zip(old, new, strict=True):
        walk(*pair)
    return blobs, keys


def exchange_pieces(
    pieces: Iterable[Piece],
    blobs: Mapping[Digest, Digest],
    keys: Mapping[str, str],
    store: Store,
) -> Iterator[Piece]:
    """Yield the pieces of a file with other blobs, and other keys in what stands between them.

    Keys are SHA-256 in hexadecimal behind a prefix that stays. Raises MissingBlobError.
    """
    found = {old[-64:].encode(): new[-64:].encode() for old, new in keys.items()}
    for kind, value in pieces:
        if kind == "bytes":
            yield kind, value
        elif value in blobs:
            yield kind, blobs[Digest(value)]
        else:
            data = store.read(Digest(value))
            yield kind, store.put(_KEY.sub(lambda match: found.get(match[0], match[0]), data))
