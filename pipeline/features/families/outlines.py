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
        "By package and file name, the digest and the size in bytes of each file, for all packages",
        "that share weights, including this one.",
    ),
}
