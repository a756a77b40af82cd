"""The files that a family of packages shares: what two or more of them hold, by content.

Moving data changes no object. Named data of delegates keep their keys, under which a runtime looks
into `.ptd` files too; constants of portable operators get names, as `external_constants` gives them
(exir/emit/_emitter.py), but by content, since two packages may call one tensor differently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from executorch.exir._serialize.data_serializer import DataPayload
from executorch.exir.schema import Tensor, TensorDataLocation
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from pipeline.compile.cords import find_pieces
from pipeline.compile.objects import (
    Blob,
    BlobBytes,
    MethodObject,
    NamedBlob,
    merge_named_data,
    program_from_bytes,
)
from pipeline.config.patterns import fits_weight
from pipeline.store.digest import Digest, hash_json
from pipeline.store.pieces import Piece
from pipeline.store.store import Store

_LEAST = 64  # bytes; the name of a smaller constant takes more


@dataclass(frozen=True)
class SharedFiles:
    """The `.ptd` files of a family, by their stem, and what goes there: named data by key, and
    constants of portable operators by digest, each with the stem of its file."""

    files: Mapping[str, list[Piece]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[Digest, str] = field(default_factory=dict)

    def used(self, objects: Sequence[MethodObject]) -> dict[str, list[Piece]]:
        """Return the files that a package of these objects loads."""
        keys = {entry.key for each in objects for _, entry in each.tagged()}
        blobs = {blob.digest for each in objects for blob in each.constants}
        stems = {stem for key, stem in self.keys.items() if key in keys}
        stems |= {stem for digest, stem in self.constants.items() if digest in blobs}
        return {stem: pieces for stem, pieces in self.files.items() if stem in stems}


NOTHING_SHARED = SharedFiles()


def share(
    members: Mapping[str, Sequence[MethodObject]],
    names: Mapping[Digest, set[str]],
    rules: Sequence[tuple[str, Sequence[str]]],
    store: Store,
) -> SharedFiles:
    """Lay out the files that the packages of a family share.

    Args:
        members: the objects of each package.
        names: qualified names by the digest of the bytes that a constant is stored in.
        rules: stems of files, each with the modules and patterns of names that go there; the first
            that fits decides.

    Raises MissingBlobError.
    """
    keys = dict(_choose(_find_named(members), names, rules))
    constants = {Digest(each): s for each, s in _choose(_find_constants(members), names, rules)}
    entries: dict[str, dict[str, NamedBlob]] = {stem: {} for stem, _ in rules}
    for owner in (each for objects in members.values() for each in objects):
        for _, entry in owner.tagged():
            if entry.key in keys:
                entries[keys[entry.key]].setdefault(entry.key, entry)
        for blob, tensor in _iter_constants(owner, store, constants) if constants else ():
            name = name_constant(blob, tensor)
            layout = (tensor.scalar_type, tensor.sizes, tensor.dim_order)
            entries[constants[blob.digest]].setdefault(name, NamedBlob(name, blob, 1, layout))
    files = {stem: _lay_out(own, store) for stem, own in entries.items() if own}
    return SharedFiles(files, keys, constants)


def name_constant(blob: Blob, tensor: Tensor) -> str:
    """Return the name of a shared constant: by its content and its layout, which a runtime compares
    with the layout that stands beside the data."""
    layout = [int(tensor.scalar_type), list(tensor.sizes), [int(d) for d in tensor.dim_order]]
    return hash_json([blob.digest, layout])


def _find_named(members: Mapping[str, Sequence[MethodObject]]) -> dict[str, Blob]:
    """Return the named data that two packages hold, by key. A runtime refuses a key that two files
    have, so one that is something else in a third package is shared by none."""
    holders: dict[str, list[Blob]] = {}
    taken: set[str] = set()
    for objects in members.values():
        own = {entry.key: entry.blob for each in objects for _, entry in each.tagged()}
        for key, blob in own.items():
            holders.setdefault(key, []).append(blob)
        taken |= {name for each in objects for file in each.external.values() for name, _ in file}
    return {
        key: blobs[0]
        for key, blobs in holders.items()
        if len(blobs) > 1 and len(set(blobs)) == 1 and key not in taken
    }


def _find_constants(members: Mapping[str, Sequence[MethodObject]]) -> dict[str, Blob]:
    holders: dict[Blob, int] = {}
    for objects in members.values():
        for blob in {blob for each in objects for blob in each.constants}:
            holders[blob] = holders.get(blob, 0) + 1
    return {blob.digest: blob for blob, count in holders.items() if count > 1}


def _choose(
    held: Mapping[str, Blob],
    names: Mapping[Digest, set[str]],
    rules: Sequence[tuple[str, Sequence[str]]],
) -> Iterator[tuple[str, str]]:
    """Yield what is shared with the stem of its file."""
    for key, blob in sorted(held.items()):
        called = names.get(blob.digest, ())
        for stem, patterns in rules if blob.size >= _LEAST else ():
            if "*" in patterns or any(fits_weight(n, p) for n in called for p in patterns):
                yield key, stem
                break


def _iter_constants(
    owner: MethodObject, store: Store, wanted: Mapping[Digest, Any]
) -> Iterator[tuple[Blob, Tensor]]:
    """Yield the wanted constants of portable operators in an object, as its tensors use them."""
    if not any(blob.digest in wanted for blob in owner.constants):
        return
    for plan in program_from_bytes(store.read(owner.program.digest)).execution_plan:
        for tensor in (value.val for value in plan.values):
            if isinstance(tensor, Tensor) and is_constant(tensor):
                blob = owner.constants[tensor.data_buffer_idx]
                if blob.digest in wanted:
                    yield blob, tensor


def is_constant(tensor: Tensor) -> bool:
    """Tell whether a tensor's data stands in the `.pte`, never to be written."""
    extra = tensor.extra_tensor_info
    external = extra is not None and extra.location is TensorDataLocation.EXTERNAL
    return tensor.data_buffer_idx > 0 and tensor.allocation_info is None and not external


def _lay_out(entries: Mapping[str, NamedBlob], store: Store) -> list[Piece]:
    """Lay out a `.ptd` file, by key, so that it does not depend on who holds what."""
    data = merge_named_data(((None, entries[key]) for key in sorted(entries)), BlobBytes)
    payload = DataPayload(data.buffers, data.pte_data)
    return find_pieces(FlatTensorSerializer().serialize(payload), store)
