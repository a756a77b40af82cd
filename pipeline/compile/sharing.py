"""Weights that a family's packages share, in `.ptd` files that all of them load.

Moving data changes no object. Named data of delegates keep their keys, which a runtime also looks
up in `.ptd` files; constants of portable operators get names (`objects.name_constant`). Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.pieces import Piece

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Shared:
    """Shared weights, and the `.ptd` files that hold them.

    Attributes:
        keys: by the key of named data, their digest and the stem of their file.
        constants: by the digest of a constant of portable operators, the stem of its file.
        files: by stem, the pieces of each file.
    """

    keys: Mapping[str, tuple[Digest, str]] = field(default_factory=dict)
    constants: Mapping[Digest, str] = field(default_factory=dict)
    files: Mapping[str, list[Piece]] = field(default_factory=dict)

    def find(self, record: Json) -> list[list[tuple[int, str]]]:
        """Return the shared data of an object, given its record.

        Returns:
            Three lists of (index, stem of the file): for constants, external constants and named
            data.
        """
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
        """Add the family's files that a package of these objects loads to the package's own pieces.

        Raises PipelineError if two files would have the same name, or if a key has two contents.
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
        # On macOS and Windows, names that differ only in case are the same file.
        both = {stem.casefold() for stem in pieces} & {stem.casefold() for stem in used}
        if both:
            raise PipelineError(
                f"{both.pop()}.ptd is a file of the package and also a file of its family; "
                "rename one of them"
            )
        return {**pieces, **used}

    def _check_content(self, entry: Json) -> None:
        """Raise PipelineError if the entry's key has another content in a file of the family."""
        key = entry["key"]
        if key not in self.keys:
            return
        digest, stem = self.keys[key]
        if digest != entry["blob"]["digest"]:
            raise PipelineError(
                f"named data '{key}' differs from the data of that name in {stem}.ptd of the "
                "family's base; leave it out of `share`"
            )


NOTHING_SHARED = Shared()


def iter_named(record: Json) -> Iterator[Json]:
    """Yield all named data in an object's record, in the order of `MethodObject.tagged`."""
    for entries in (record["named"], *record["named_external"].values()):
        yield from entries
