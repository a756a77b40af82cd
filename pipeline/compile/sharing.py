"""Share weights between packages, in files that all of them load.

Moving data changes no object. Named data of delegates keep their keys, which a runtime also looks
up in `.ptd` files; constants of portable operators get names (objects.py). This module doesn't
import torch.
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
    """The weights that a family of packages shares.

    Attributes:
        keys: the digest and file stem of each piece of named data, by key.
        constants: the file stem of each constant of portable operators, by digest.
        files: the pieces of each `.ptd` file, by its stem.
    """

    keys: Mapping[str, tuple[Digest, str]] = field(default_factory=dict)
    constants: Mapping[Digest, str] = field(default_factory=dict)
    files: Mapping[str, list[Piece]] = field(default_factory=dict)

    def find(self, record: Json) -> list[list[tuple[int, str]]]:
        """Return the shared data of an object: (index, file stem) pairs in three lists.

        The lists are for its constants, its external constants, and its named data.
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
        """Return a package's own files, plus the shared files that these objects need.

        Raises PipelineError if two files have the same name, or a key has two contents.
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
        """Raise PipelineError if a file of the family has other content under an entry's key."""
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
    """Yield all named data of an object's record, in the order of `MethodObject.tagged`."""
    for entries in (record["named"], *record["named_external"].values()):
        yield from entries
