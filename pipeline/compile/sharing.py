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
Rules = Sequence[tuple[str, Sequence[str]]]  # stems of files, each with patterns of names
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
        named = [self.keys.get(entry["key"], ("", ""))[1] for entry in iter_named(record)]
        kinds = ("constants", "external_constants")
        stems = [[self.constants.get(b["digest"], "") for b in record[kind]] for kind in kinds]
        return [[pair for pair in enumerate(each) if pair[1]] for each in (*stems, named)]

    def add_files(
        self, pieces: Mapping[str, list[Piece]], records: Iterable[Json]
    ) -> dict[str, list[Piece]]:
        """Add the files that a package of these objects loads to its own.

        Raises PipelineError where two would have one name, or one key two contents.
        """
        records = list(records)
        for entry in (each for record in records for each in iter_named(record)):
            known, stem = self.keys.get(entry["key"], (entry["blob"]["digest"], ""))
            if known != entry["blob"]["digest"]:
                what = f"named data '{entry['key']}' is something else in {stem}.ptd"
                raise PipelineError(f"{what}, of the family's base; leave it out of `share`")
        stems = {stem for record in records for kind in self.find(record) for _, stem in kind}
        used = {stem: own for stem, own in self.files.items() if stem in stems}
        if both := {stem.casefold() for stem in pieces} & {stem.casefold() for stem in used}:
            what = f"{both.pop()}.ptd is a file of the package, and one of its family"
            raise PipelineError(f"{what}; give one of them another name")
        return {**pieces, **used}


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
    taken: set[str] = set()
    for package, records in members.items():
        for record in records:
            own = {_identify(blob) for blob in iter_constants(record)}
            constants |= own
            for entry in iter_named(record):
                named.setdefault(entry["key"], set()).add(blob := _identify(entry["blob"]))
                own.add(blob)
            for blob in own:
                holders.setdefault(blob, set()).add(package)
            taken |= {name for file in record["external"].values() for name, _ in file}
    least = 1 if base is not None else 2
    stems = {b: _place(b, names, rules) for b in sorted(holders) if len(holders[b]) >= least}
    keys = {k: blobs.pop() for k, blobs in sorted(named.items()) if len(blobs) == 1}
    return Shared(
        {k: (b[0], stem) for k, b in keys.items() if k not in taken and (stem := stems.get(b))},
        {b[0]: stem for b in sorted(constants) if (stem := stems.get(b))},
    )


def _place(blob: _Blob, names: Mapping[Digest, set[str]], rules: Rules) -> str | None:
    """Return the stem of the file of what is shared; None for what is shared by none."""
    digest, size = blob
    called = names.get(digest, ())
    for stem, patterns in rules if size >= _LEAST else ():
        if "*" in patterns or any(fits_weight(n, p) for n in called for p in patterns):
            return stem
    return None


def hash_content(shared: Shared, records: Iterable[Json]) -> Digest:
    """Hash all that the files of what is shared depend on: how objects lay it out, beside it."""
    named: dict[str, Any] = {}
    users: set[str] = set()
    for record in records:
        named |= {e["key"]: e for e in iter_named(record) if e["key"] in shared.keys}
        constants, external, _ = shared.find(record)
        if constants or external:
            own = [
                [record[kind][i]["digest"] for i, _ in places]
                for kind, places in (("constants", constants), ("external_constants", external))
            ]
            users.add(hash_json([record["program"]["digest"], constants, external, own]))
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
