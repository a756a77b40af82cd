"""Chooses the weights that a family's packages share, by content, from their objects. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.compile.sharing import Json, Shared, iter_named
from pipeline.config.patterns import fits_weight
from pipeline.store.digest import Digest, hash_json

# Stems of files, each with patterns of names.
Rules = Sequence[tuple[str, Sequence[str]]]
_Blob = tuple[Digest, int]  # with its size in bytes
_LEAST = 64  # bytes; a smaller constant's name takes more


def choose(
    members: Mapping[str, Sequence[Json]],
    names: Mapping[Digest, set[str]],
    rules: Rules,
    base: str | None = None,
) -> Shared:
    """Choose the data to share.

    With a base, this is whatever the base contains; otherwise, whatever two packages contain, even
    under two keys, or as a constant in one and a delegate's data in the other.

    A runtime refuses a key that occurs in two files, so a key with another content in a third
    package is not shared.

    Args:
        members: the records of each package's objects.
        names: qualified names by the digest of a constant's stored bytes.
        rules: the first rule with a matching pattern determines the file.
    """
    named: dict[str, set[_Blob]] = {}
    constants: set[_Blob] = set()
    holders: dict[_Blob, set[str]] = {}
    external_names: set[str] = set()
    for package, records in members.items():
        for record in records:
            blobs = {_identify(blob) for blob in iter_constants(record)}
            constants |= blobs
            for entry in iter_named(record):
                blob = _identify(entry["blob"])
                blobs.add(blob)
                named.setdefault(entry["key"], set()).add(blob)
            for blob in blobs:
                holders.setdefault(blob, set()).add(package)
            for file in record["external"].values():
                external_names |= {name for name, _ in file}
    # A base's data is shared with packages that are yet to come.
    least = 2
    if base is not None:
        least = 1
    stems: dict[_Blob, str] = {}
    for blob in sorted(holders):
        stem = None
        if len(holders[blob]) >= least:
            stem = _place(blob, names, rules)
        if stem:
            stems[blob] = stem
    keys = {}
    for key, blobs in sorted(named.items()):
        blob = next(iter(blobs))
        # A key with two contents can't be in one file, nor can one that a `.ptd` already contains.
        if len(blobs) == 1 and key not in external_names and blob in stems:
            keys[key] = (blob[0], stems[blob])
    shared_constants = {}
    for blob in sorted(constants):
        if blob in stems:
            shared_constants[blob[0]] = stems[blob]
    return Shared(keys, shared_constants)


def _place(blob: _Blob, names: Mapping[Digest, set[str]], rules: Rules) -> str | None:
    """Return the stem of the file for shared data, or None if no rule shares it."""
    digest, size = blob
    if size < _LEAST:
        return None
    blob_names = names.get(digest, ())
    for stem, patterns in rules:
        if "*" in patterns:
            return stem
        for name in blob_names:
            if any(fits_weight(name, pattern) for pattern in patterns):
                return stem
    return None


def hash_content(shared: Shared, records: Iterable[Json]) -> Digest:
    """Hash everything on which the shared files depend: the data, and its layout in the objects."""
    named: dict[str, Any] = {}
    users: set[str] = set()
    for record in records:
        for entry in iter_named(record):
            if entry["key"] in shared.keys:
                named[entry["key"]] = entry
        constants, external, _ = shared.find(record)
        if not constants and not external:
            continue
        digests = [
            [record["constants"][number]["digest"] for number, _ in constants],
            [record["external_constants"][number]["digest"] for number, _ in external],
        ]
        users.add(
            hash_json([record["program"]["digest"], constants, external, digests])
        )
    return hash_json([shared.keys, shared.constants, named, sorted(users)])


def iter_constants(record: Json) -> Iterator[Json]:
    """Yield the constants of portable operators, including those in the package's data files."""
    yield from record["constants"]
    yield from record["external_constants"]


def _identify(blob: Json) -> _Blob:
    return blob["digest"], blob["size"]
