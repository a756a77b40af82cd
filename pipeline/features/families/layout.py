"""Lays out the files that a family shares (choice.py).

Constants of portable operators get names, as with `external_constants` (exir/emit/_emitter.py), but
derived from their content, since two packages may name one tensor differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from executorch.exir._serialize.data_serializer import DataPayload
from executorch.exir.schema import Tensor
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from pipeline.compile.cords import find_pieces
from pipeline.compile.objects import (
    Blob,
    BlobBytes,
    MethodObject,
    NamedBlob,
    find_constant,
    merge_named_data,
    name_constant,
    program_from_bytes,
)
from pipeline.compile.sharing import Shared
from pipeline.store.pieces import Piece
from pipeline.store.store import Store


def lay_out_files(
    shared: Shared, objects: Sequence[MethodObject], store: Store
) -> dict[str, list[Piece]]:
    """Lay out the shared files, by their stem, from the objects that contain their data.

    Raises MissingBlobError.
    """
    stems = {stem for _, stem in shared.keys.values()} | set(shared.constants.values())
    entries: dict[str, dict[str, NamedBlob]] = {stem: {} for stem in sorted(stems)}
    for owner in objects:
        for _, entry in owner.tagged():
            if entry.key in shared.keys:
                entries[shared.keys[entry.key][1]].setdefault(entry.key, entry)
        for blob, tensor in _iter_shared(owner, shared, store):
            name = name_constant(blob, tensor)
            layout = (tensor.scalar_type, tensor.sizes, tensor.dim_order)
            named_constant = NamedBlob(name, blob, 1, layout)
            entries[shared.constants[blob.digest]].setdefault(name, named_constant)
    return {
        stem: _lay_out(named_constant, store)
        for stem, named_constant in entries.items()
    }


def _iter_shared(
    owner: MethodObject, shared: Shared, store: Store
) -> Iterator[tuple[Blob, Tensor]]:
    """Yield an object's shared constants of portable operators, with the tensors using them."""
    constants = (*owner.constants, *owner.external_constants)
    if not any(blob.digest in shared.constants for blob in constants):
        return
    for plan in program_from_bytes(store.read(owner.program.digest)).execution_plan:
        for tensor in (value.val for value in plan.values):
            blob = None
            if isinstance(tensor, Tensor):
                blob = find_constant(owner, tensor)
            if blob is not None and blob.digest in shared.constants:
                yield blob, tensor


def _lay_out(entries: dict[str, NamedBlob], store: Store) -> list[Piece]:
    """Lay out a `.ptd` file in the order of keys, independent of which package has what."""
    data = merge_named_data(
        ((None, entries[key]) for key in sorted(entries)),
        BlobBytes,
    )
    payload = DataPayload(data.buffers, data.pte_data)
    return find_pieces(FlatTensorSerializer().serialize(payload), store)
