"""Packages linked without a workspace."""

from typing import NamedTuple

from pipeline.compile.link import lay_out
from pipeline.compile.sharing import NOTHING_SHARED
from pipeline.store.compiled import Blob
from pipeline.store.pieces import join_pieces


class LinkedFiles(NamedTuple):
    """The files of a package as blobs: the `.pte`, and the `.ptd` files keyed by stem."""

    pte: Blob
    ptds: dict[str, Blob]


def link(objects, constant_methods, store, order=(), layout=None, shared=NOTHING_SHARED):
    """Lay objects out and commit the files, including those that a family shares."""
    pieces = lay_out(objects, constant_methods, store, order, layout, shared)
    pieces = shared.add_files(pieces, [method_object.to_json() for method_object in objects])
    files = {stem: Blob(*join_pieces(parts, store)) for stem, parts in pieces.items()}
    return LinkedFiles(files.pop(""), files)
