"""The forms of the results that the store keeps for families, by kind."""

from __future__ import annotations

from pipeline.store.digest import Digest
from pipeline.store.forms import FileName, Piece

FAMILY_FILES = {"files": {FileName: list[Piece]}}
FAMILY = {
    **FAMILY_FILES,
    "keys": {str: [Digest, FileName]},
    "constants": {Digest: FileName},
}
# The form of the family in a report.
REPORT_FAMILY = {
    "name": str,
    "base": (str, None),
    "packages": (
        dict[str, dict[str, tuple[str, int]]],
        "By package and name, digest and size in bytes of the files of those that share weights,",
        "this package among them.",
    ),
}
