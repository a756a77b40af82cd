"""The files that a family shares: made once, by whichever of its packages is linked first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.compile.sharing import NOTHING_SHARED, Shared
from pipeline.features.families.choice import choose, hash_content
from pipeline.plan.actions import Action
from pipeline.plan.kinds.link import LinkInputs
from pipeline.plan.kinds.parts import Key
from pipeline.run.build.link import LinkedPackage
from pipeline.store.digest import Digest, hash_json
from pipeline.store.pieces import Piece
from pipeline.store.store import MissingBlobError, Store

Json = Mapping[str, Any]


def find_shared(
    action: Action[LinkInputs], store: Store, may_lay_out: bool
) -> Shared | None:
    """Return the weights that a package's family shares, with their files.

    Returns None if the files would have to be laid out and `may_lay_out` is false. Raises
    MissingBlobError.
    """
    family = action.key.get("family")
    if family is None:
        return NOTHING_SHARED
    key = {"kind": "family", **_tools(action.key), **family}
    with store.lock(hash_json(key)):
        if (record := _find(key, store)) is not None:
            return Shared(**record)
        records, names = _load(action, store)
        chosen = choose(records, names, family["share"], family["base"])
        objects = [unit for member in records.values() for unit in member]
        content = hash_content(chosen, objects)
        files_key = {"kind": "family-files", **_tools(action.key), "content": content}
        if (record := _find(files_key, store)) is None:
            if not may_lay_out:
                return None
            record = {"files": _lay_out(chosen, objects, store)}
            store.put_result(files_key, record)
        shared = replace(chosen, files=record["files"])
        store.put_result(key, asdict(shared))
    return shared


def describe_family(package: LinkedPackage) -> Json:
    """Add the family settings of the config to the manifest."""
    family = package.action.key.get("family")
    if family is not None:
        package.manifest["family"] = {
            "name": family["name"],
            "base": family["base"],
            "share": dict(family["share"]),
        }
    return {}


def _tools(link: Json) -> Key:
    return {"code": link["code"], "toolchain": link["toolchain"]}


def _lay_out(
    shared: Shared, records: Sequence[Json], store: Store
) -> dict[str, list[Piece]]:
    # Imports torch, which a link from pieces doesn't need.
    from pipeline.compile.objects import parse_object
    from pipeline.features.families.layout import lay_out_files

    objects = [parse_object(parts) for parts in records]
    return lay_out_files(shared, objects, store)


def _find(key: Key, store: Store) -> Json | None:
    """Return a record of files if all of its blobs exist."""
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
    """Return the records of the objects that determine the shared weights, by package.

    Also returns qualified names by the digest of a constant's stored bytes.
    """
    members: dict[str, list[Json]] = {}
    names: dict[Digest, set[str]] = {}
    for package, compiles in sorted(action.inputs.related_compiles.items()):
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
