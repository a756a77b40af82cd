"""The files that a family shares: made once, by whichever of its packages is linked first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.compile.sharing import Shared, choose, hash_content
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs, family_files_key, family_key
from pipeline.plan.kinds.parts import Key
from pipeline.store.digest import Digest, hash_json
from pipeline.store.pieces import Piece
from pipeline.store.store import MissingBlobError, Store

Json = Mapping[str, Any]
LayOut = Callable[[Shared, Sequence[Json]], dict[str, list[Piece]]]


def find_shared(
    action: Action[LinkInputs], store: Store, lay_out: LayOut | None = None
) -> Shared | None:
    """Return what a package's family shares, with its files; None where those are to be laid out
    and `lay_out`, which needs torch, is not given. Raises MissingBlobError."""
    family, key = action.key["family"], family_key(action.key)
    with store.lock(hash_json(key)):
        if (record := _find(key, store)) is not None:
            return Shared(**record)
        records, names = _load(action, store)
        chosen = choose(records, names, family["share"], family["base"])
        objects = [unit for member in records.values() for unit in member]
        files_key = family_files_key(action.key, hash_content(chosen, objects))
        if (record := _find(files_key, store)) is None:
            if lay_out is None:
                return None
            record = {"files": lay_out(chosen, objects)}
            store.put_result(files_key, record)
        shared = replace(chosen, files=record["files"])
        store.put_result(key, asdict(shared))
    return shared


def _find(key: Key, store: Store) -> Json | None:
    """Return a record of files whose blobs are all there."""
    if (entry := store.get_by_key(key)) is None:
        return None
    pieces = [
        piece for file_pieces in entry.result["files"].values() for piece in file_pieces
    ]
    return (
        entry.result
        if store.intact(v for kind, v in pieces if kind == "blob")
        else None
    )


def _load(
    action: Action[LinkInputs], store: Store
) -> tuple[dict[str, list[Json]], dict[Digest, set[str]]]:
    """Return the records of the objects that decide, by package, and qualified names by the digest
    of the bytes that a constant is stored in."""
    members: dict[str, list[Json]] = {}
    names: dict[Digest, set[str]] = {}
    for package, compiles in sorted(action.inputs.family_compiles.items()):
        for unit, digest in sorted(compiles.items()):
            if (entry := store.get(digest)) is None:
                raise MissingBlobError(
                    f"the object of {package}/{unit} is not in the store"
                )
            members.setdefault(package, []).append(entry.result["object"])
            for method in entry.result["methods"].values():
                for base, tensor in method["constants"]["tensors"].items():
                    for form in (base, *tensor["forms"]):
                        names.setdefault(form, set()).update(tensor["names"])
    return members, names
