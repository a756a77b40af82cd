"""The results that the store keeps of refits, and of links whose files can take other blobs."""

from __future__ import annotations

from typing import Any

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, Piece

_RECIPE = {
    "steps": list[dict[str, Any]],
    "guards": [{"view": dict[str, Any], "digest": Digest, "where": str}],
    "blobs": {Digest: [(Count, None)]},
    "described": {Digest: [(dict[str, Any], None)]},
}
REFIT = {
    "base": Digest,
    "proven": bool,
    "why": str,
    "misses": Count,
    "recipe": (_RECIPE, None),
}
RELINK = {"compiles": dict[str, Digest], "pieces": dict[str, list[Piece]]}
