"""Rebuilds a file with other blobs by replacing pieces with others of equal size. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.store.digest import Digest, hash_json
from pipeline.store.pieces import Piece
from pipeline.store.store import Store

Json = Mapping[str, Any]
_KEY = re.compile(rb"[0-9a-f]{64}")


def hash_shape(objects: Sequence[Json]) -> Digest:
    """Hash everything that linking looks at in objects.

    These are the sizes of blobs, and which blobs and which keys of named data are equal. Contents,
    which linking doesn't look at, are numbered.
    """
    numbers: dict[str, int] = {}

    def shape(value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {key: shape(item, _inner(name, key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [shape(item, name) for item in value]
        if name in ("digest", "key", "keys"):
            return numbers.setdefault(value, len(numbers))
        return value

    return hash_json([[item["program"]["digest"], shape(item)] for item in objects])


def _inner(name: str, key: str) -> str:
    """Return the name of a field of a mapping; the `keys` of a joint unit are a list per method."""
    return name if name == "keys" else key


def pair_objects(
    old: Sequence[Json], new: Sequence[Json]
) -> tuple[dict[Digest, Digest], dict[str, str]]:
    """Map the blobs and the keys of named data of old objects to those of new ones.

    Both must have the same shape.
    """
    blobs: dict[Digest, Digest] = {}
    keys: dict[str, str] = {}

    def walk(before: Any, after: Any, name: str = "") -> None:
        if isinstance(before, Mapping):
            for key in before:
                walk(before[key], after[key], _inner(name, key))
        elif isinstance(before, list | tuple):
            for pair in zip(before, after, strict=True):
                walk(*pair, name)
        elif name == "digest":
            blobs[before] = after
        elif name in ("key", "keys"):
            keys[before] = after

    for pair in zip(old, new, strict=True):
        walk(*pair)
    return blobs, keys


def exchange_pieces(
    pieces: Iterable[Piece],
    blobs: Mapping[Digest, Digest],
    keys: Mapping[str, str],
    store: Store,
) -> Iterator[Piece]:
    """Yield the pieces of a file with other blobs, and with other keys in the data between them.

    Keys are 64 hexadecimal digits after a prefix that stays. Raises MissingBlobError.
    """
    new_keys = {}
    for old, new in keys.items():
        new_keys[old[-64:].encode()] = new[-64:].encode()
    for piece in pieces:
        if piece[0] == "bytes":
            yield piece
        elif piece[1] in blobs:
            yield "blob", blobs[piece[1]]
        else:
            data = store.read(piece[1])
            yield (
                "blob",
                store.put(
                    _KEY.sub(lambda match: new_keys.get(match[0], match[0]), data)
                ),
            )
