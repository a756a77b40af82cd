"""Splits files laid out by ExecuTorch's serializers into blobs and the bytes between them."""

from __future__ import annotations

from itertools import groupby

from executorch.exir._serialize._cord import Cord

from pipeline.compile.objects import BlobBytes
from pipeline.store.pieces import Piece, make_piece
from pipeline.store.store import Store


def find_pieces(cord: Cord, store: Store) -> list[Piece]:
    """Return the pieces of a laid-out file: its blobs, and the bytes that the serializer wrote.

    Long runs of such bytes become blobs too.
    """
    all_pieces: list[Piece] = []
    for is_blob, pieces in groupby(
        cord._buffers, lambda piece: isinstance(piece, BlobBytes)
    ):
        if is_blob:
            all_pieces += [("blob", piece.blob.digest) for piece in pieces]
        else:
            all_pieces.append(make_piece(b"".join(pieces), store))
    return all_pieces
