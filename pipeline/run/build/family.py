"""The files that a family shares: made once, by whichever of its packages is linked first."""

from __future__ import annotations

from dataclasses import asdict

from pipeline.compile.family import SharedFiles, share
from pipeline.compile.objects import MethodObject, parse_object
from pipeline.plan.actions import Action, LinkInputs
from pipeline.plan.keys import family_key
from pipeline.store.digest import Digest, hash_json
from pipeline.store.store import MissingBlobError, Store


def share_files(action: Action[LinkInputs], store: Store) -> SharedFiles:
    """Return the files that a package's family shares. Raises MissingBlobError."""
    key = family_key(action.key)
    with store.lock(hash_json(key)):
        if (entry := store.get_by_key(key)) is not None:
            pieces = [piece for own in entry.result["files"].values() for piece in own]
            if store.intact(value for kind, value in pieces if kind == "blob"):
                return SharedFiles(**entry.result)
        shared = _share(action, store)
        store.put_result(key, asdict(shared))
    return shared


def _share(action: Action[LinkInputs], store: Store) -> SharedFiles:
    family = action.key["family"]
    members: dict[str, list[MethodObject]] = {}
    names: dict[Digest, set[str]] = {}
    for package, compiles in sorted(family["members"].items()):
        for unit, digest in sorted(compiles.items()):
            if (entry := store.get(digest)) is None:
                raise MissingBlobError(f"the object of {package}/{unit} is not in the store")
            members.setdefault(package, []).append(parse_object(entry.result["object"]))
            for method in entry.result["methods"].values():
                for base, tensor in method["constants"]["tensors"].items():
                    for form in (base, *tensor["forms"]):
                        names.setdefault(form, set()).update(tensor["names"])
    return share(members, names, family["share"], store)
