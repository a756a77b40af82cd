"""Puts other blobs, such as those of new weights, into the files of a linked package.

The layout that linking produces depends on the sizes of blobs, and on which of them are equal. A
second key identifies a link apart from the contents of its blobs. The record stored under it has
the pieces that the files were assembled from, in which blobs are exchanged without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pipeline.compile.sharing import Shared
from pipeline.features.refit.pieces import exchange_pieces, hash_shape, pair_objects
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.program.constant_values import find_blobs
from pipeline.run.build.link import (
    Deliver,
    Json,
    Units,
    check_units,
    find_shared,
    finish_package,
    load_units,
)
from pipeline.run.build.metadata import make_metadata
from pipeline.run.stages import Stages
from pipeline.store.pieces import Piece
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

# Fields of a link's key that don't affect the layout.
_NOT_LAID_OUT = (
    "package",
    "model",
    "target",
    "file",
    "compiles",
)


def keep_pieces(
    action: Action[LinkInputs],
    units: Units,
    shared: Shared,
    pieces: Mapping[str, Sequence[Piece]],
    store: Store,
) -> None:
    """Keep the pieces of the linked files, if other blobs can be put into them."""
    if _depends_on_sizes(action, units):
        record = {"compiles": dict(action.inputs.compiles), "pieces": pieces}
        store.put_result(_shape_key(action, units, shared), record)


def relink_package(
    action: Action[LinkInputs],
    workspace: Workspace,
    stages: Stages,
    deliver: Deliver,
) -> bool:
    """Put other blobs into the files linked from similar objects, and deliver the result.

    Returns whether there were such files. Imports no torch.
    """
    store = workspace.store
    with suppress(MissingBlobError), store.lock(action.digest):
        if store.get(action.digest) is not None:
            return False  # made in the meantime
        with stages.stage("load"):
            units, spent = load_units(action, store)
            if not _depends_on_sizes(action, units):
                return False
            if (shared := find_shared(action, store, may_lay_out=False)) is None:
                return False
            record = store.get_by_key(_shape_key(action, units, shared))
        if record is None:
            return False
        with stages.stage("relink"):
            check_units(action, units)
            if (pieces := _exchange(record.result, units, store)) is None:
                return False
            pieces = shared.add_files(
                pieces, [unit["object"] for unit in units.values()]
            )
        with stages.stage("store"):
            finish_package(action, store, stages, units, pieces, spent, deliver)
        return True
    return False


def _depends_on_sizes(action: Action[LinkInputs], units: Units) -> bool:
    """Return whether the layout depends only on the sizes of blobs, and which of them are equal."""
    constants = any([*find_blobs(value)] for _, value in action.key["constant_methods"])
    inline = action.key["layout"].get("extract_delegate_segments") is False
    return not (constants or inline or any(unit["etrecord"] for unit in units.values()))


def _shape_key(
    action: Action[LinkInputs], units: Units, shared: Shared
) -> dict[str, Any]:
    """Return the key of the record for files of one layout, in any package.

    A new adapter is thus linked from the record of another.
    """
    objects = [unit["object"] for unit in units.values()]
    key = {
        name: value
        for name, value in action.key.items()
        if name not in (*_NOT_LAID_OUT, *action.inputs.additions)
    }
    if metadata := make_metadata(action.key, units):
        key["metadata"] = metadata  # stored in the file, between blobs
    places = [shared.find(unit) for unit in objects]
    description = {"units": list(units), "shape": hash_shape(objects), "shared": places}
    return {**key, "kind": "relink", **description}


def _exchange(
    record: Json, units: Units, store: Store
) -> dict[str, list[Piece]] | None:
    """Return the pieces of the files in a record with the blobs of these units.

    Returns None if the record doesn't fit the units, as a remote's record might not.

    Raises MissingBlobError.
    """
    if record["compiles"].keys() != units.keys():
        return None
    bases = []
    for name in units:
        if (entry := store.get(record["compiles"][name])) is None:
            raise MissingBlobError(
                f"the object of {name} that was linked is not in the store"
            )
        bases.append(entry.result["object"])
    objects = [unit["object"] for unit in units.values()]
    if hash_shape(bases) != hash_shape(objects):
        return None
    blobs, keys = pair_objects(bases, objects)
    # Shared constants are named by their digests.
    names = keys | {str(old): str(new) for old, new in blobs.items()}
    return {
        stem: list(exchange_pieces(file_pieces, blobs, names, store))
        for stem, file_pieces in record["pieces"].items()
    }
