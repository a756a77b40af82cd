"""Chooses the weights that the packages of a family share, by content, from their objects.

Moving data changes no object. Named data of delegates keep their keys, under which a runtime looks
into `.ptd` files too; constants of portable operators get names (family.py). No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.patterns import fits_weight
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.pieces import Piece

Json = Mapping[str, Any]
# Stems of files, each with patterns of names.
Rules = Sequence[tuple[str, Sequence[str]]]
_Blob = tuple[Digest, int]  # with its size in bytes
_LEAST = 64  # bytes; the name of a smaller constant takes more


@dataclass(frozen=True)
class Shared:
    """Shared weights, and the `.ptd` files by their stem: named data by key, with digest and stem,
    and constants of portable operators by digest, with the stem of their file."""

    keys: Mapping[str, tuple[Digest, str]] = field(default_factory=dict)
    constants: Mapping[Digest, str] = field(default_factory=dict)
    files: Mapping[str, list[Piece]] = field(default_factory=dict)

    def find(self, record: Json) -> list[list[tuple[int, str]]]:
        """Return what of an object is shared: places of constants, of external ones and of named
        data, each with the stem of its file."""
        shared: list[list[tuple[int, str]]] = []
        for kind in ("constants", "external_constants"):
            stems = [self.constants.get(blob["digest"], "") for blob in record[kind]]
            shared.append([pair for pair in enumerate(stems) if pair[1]])
        stems = []
        for entry in iter_named(record):
            _, stem = self.keys.get(entry["key"], ("", ""))
            stems.append(stem)
        shared.append([pair for pair in enumerate(stems) if pair[1]])
        return shared

    def add_files(
        self, pieces: Mapping[str, list[Piece]], records: Iterable[Json]
    ) -> dict[str, list[Piece]]:
        """Add the files that a package of these objects loads to its own.

        Raises PipelineError where two would have one name, or one key two contents.
        """
        stems: set[str] = set()
        for record in records:
            for entry in iter_named(record):
                self._check_content(entry)
            for kind in self.find(record):
                stems.update(stem for _, stem in kind)
        used = {
            stem: file_pieces
            for stem, file_pieces in self.files.items()
            if stem in stems
        }
        both = {stem.casefold() for stem in pieces} & {stem.casefold() for stem in used}
        if both:
            raise PipelineError(
                f"{both.pop()}.ptd is a file of the package, and one of its family; give one of "
                "them another name"
            )
        return {**pieces, **used}

    def _check_content(self, entry: Json) -> None:
        """Raise PipelineError for a key that is another content in a file of the family."""
        key = entry["key"]
        if key not in self.keys:
            return
        digest, stem = self.keys[key]
        if digest != entry["blob"]["digest"]:
            raise PipelineError(
                f"named data '{key}' is something else in {stem}.ptd, of the family's base; leave "
                "it out of `share`"
            )


NOTHING_SHARED = Shared()


def choose(
    members: Mapping[str, Sequence[Json]],
    names: Mapping[Digest, set[str]],
    rules: Rules,
    base: str | None = None,
) -> Shared:
    """Choose what is shared: what the base holds, or, without one, what two packages hold, be it
    under two keys, or as a constant and in a delegate's data.

    A runtime refuses a key that two files have, so one that is something else in a third package is
    shared by none.

    Args:
        members: the records of the objects of each package.
        names: qualified names by the digest of the bytes that a constant is stored in.
        rules: the first with a pattern that fits decides on the file.
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
    # What a base holds is shared with packages that are yet to come.
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
        # A key with two contents can't be in one file, nor one that a `.ptd` has already.
        if len(blobs) == 1 and key not in external_names and blob in stems:
            keys[key] = (blob[0], stems[blob])
    shared_constants = {}
    for blob in sorted(constants):
        if blob in stems:
            shared_constants[blob[0]] = stems[blob]
    return Shared(keys, shared_constants)


def _place(blob: _Blob, names: Mapping[Digest, set[str]], rules: Rules) -> str | None:
    """Return the stem of the file of what is shared; None for what is shared by none."""
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
    """Hash all that the shared files depend on: what is shared, and how objects lay it out."""
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


def iter_named(record: Json) -> Iterator[Json]:
    """Yield all named data of an object, as `MethodObject.tagged` does."""
    for entries in (record["named"], *record["named_external"].values()):
        yield from entries


def iter_constants(record: Json) -> Iterator[Json]:
    """Yield the constants of portable operators, those in files of the package's own too."""
    yield from record["constants"]
    yield from record["external_constants"]


def _identify(blob: Json) -> _Blob:
    return blob["digest"], blob["size"]
