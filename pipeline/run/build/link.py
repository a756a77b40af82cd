"""Link: the objects of a package to its files."""

from __future__ import annotations

from pipeline.compile import etrecord
from pipeline.compile.inspect.contents import describe_contents
from pipeline.compile.link import link
from pipeline.plan.actions import Action, LinkInputs
from pipeline.report.records import record_bytes
from pipeline.run.build.compiled import CompiledUnit
from pipeline.run.build.manifest import make_manifest
from pipeline.run.install import install
from pipeline.run.stages import Stages
from pipeline.store.files import CONTENTS, MANIFEST
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace


def link_package(action: Action[LinkInputs], workspace: Workspace, stages: Stages) -> None:
    """Link the objects of a package, and put the files into `build/`."""
    store = workspace.store
    compiled, spent = _load_units(action, store)
    constants, order = dict(action.key["constant_methods"]), action.key["order"]
    with stages.stage("link"):
        unit_of = {method: name for name, unit in compiled.items() for method in unit.methods}
        objects = [compiled[name].object for name in dict.fromkeys(map(unit_of.__getitem__, order))]
        linked = link(objects, constants, store, order, action.key["layout"])
    with stages.stage("store"):
        blobs = {f"{action.model}.pte": linked.pte}
        blobs |= {f"{stem}.ptd": blob for stem, blob in linked.ptds.items()}
        files = {name: blob.digest for name, blob in blobs.items()}
        contents = describe_contents(
            {name: store.verified_path(blob, once=True) for name, blob in files.items()},
            {
                n: method.constants
                for unit in compiled.values()
                for n, method in unit.methods.items()
            },
            {n: unit.object.named_keys(n) for unit in compiled.values() for n in unit.methods},
        )
        sizes = {name: {"digest": blob.digest, "size": blob.size} for name, blob in blobs.items()}
        manifest = make_manifest(action, compiled, sizes)
        if entries := [unit.etrecord for unit in compiled.values() if unit.etrecord]:
            joined = etrecord.join_etrecords(entries, order, store)
            files[etrecord.FILE] = joined.digest
            manifest["etrecord"] = {"digest": joined.digest, "size": joined.size}
        files[MANIFEST] = store.put(record_bytes(manifest))
        files[CONTENTS] = store.put(record_bytes(contents))
        # Who finds a package spares its methods too.
        store.put_result(action.key, {"files": files}, stages.total + spent)
        install(workspace, action, files)


def _load_units(action: Action[LinkInputs], store: Store) -> tuple[dict[str, CompiledUnit], float]:
    """Return the compile units by name, and the seconds that they took."""
    compiled, spent = {}, 0.0
    for unit, compile_digest in action.inputs.compiles.items():
        entry = store.get(compile_digest)
        if entry is None:
            raise MissingBlobError(f"the object of {action.package}/{unit} is not in the store")
        compiled[unit] = CompiledUnit.from_json(entry.result)
        spent += entry.seconds
    return compiled, spent
