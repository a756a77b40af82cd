"""Links packages without a workspace."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.compile.link import lay_out
from pipeline.compile.sharing import NOTHING_SHARED, Shared
from pipeline.store.compiled import Blob, MethodObject
from pipeline.store.pieces import join_pieces
from pipeline.store.store import Store


def link(
    objects: Sequence[MethodObject], store: Store, shared: Shared = NOTHING_SHARED
) -> dict[str, Blob]:
    """Lay objects out and return the committed files, including those that a family shares.

    The files are keyed by the stem of a `.ptd`; the key of the `.pte` is "".
    """
    pieces = lay_out(objects, {}, store, shared=shared)
    pieces = shared.add_files(pieces, [item.to_json() for item in objects])
    return {stem: Blob(*join_pieces(parts, store)) for stem, parts in pieces.items()}
