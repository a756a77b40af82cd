"""The results that the store keeps of refits, and of links whose files can take other blobs."""

from __future__ import annotations

from typing import Any

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, Piece

# Steps and views are checked when they are used (`recipes.Evaluation`, `View.from_json`).
_RECIPE = {
    "steps": Any,
    "guards": [{"view": Any, "digest": Digest, "where": str}],
    "blobs": {Digest: [(Count, None)]},
    "described": {Digest: Any},
}
REFIT = {
    "base": Digest,
    "proven": bool,
    "why": str,
    "misses": Count,
    "recipe": (_RECIPE, None),
}
RELINK = {"compiles": dict[str, Digest], "pieces": dict[str, list[Piece]]}
# Keys of named data by blob; they are SHA-256, in hexadecimal digits like a digest.
NAMED_KEYS = {"keys": {Digest: Digest}}
MODEL = {"refits": bool}
