"""Link: the objects of a package to its files, among them the manifest, which says what is in the
package and what it was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.compile import etrecord
from pipeline.compile.inspect.contents import describe_contents
from pipeline.compile.link import link
from pipeline.plan.actions import Action, LinkInputs
from pipeline.plan.patterns import find_unfitting
from pipeline.run.build.called_operators import join_libraries
from pipeline.run.build.compile import CompiledUnit
from pipeline.run.stages import Stages
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.files import CONTENTS, MANIFEST, record_bytes
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

_FORMAT = 1  # of the manifest


def link_package(
    action: Action[LinkInputs],
    workspace: Workspace,
    stages: Stages,
    deliver: Callable[[Mapping[str, Any]], object],
) -> None:
    """Link the objects of a package, and deliver the result with its files."""
    store = workspace.store
    compiled, spent = _load_units(action, store)
    constants, order = dict(action.key["constant_methods"]), action.key["order"]
    unit_of = {method: name for name, unit in compiled.items() for method in unit.methods}
    with stages.stage("link"):
        _check_patterns(action, compiled)
        objects = [compiled[name].object for name in dict.fromkeys(map(unit_of.__getitem__, order))]
        linked = link(objects, constants, store, order, action.key["layout"])
    with stages.stage("store"):
        blobs = {f"{action.model}.pte": linked.pte}
        blobs |= {f"{stem}.ptd": blob for stem, blob in linked.ptds.items()}
        files = {name: blob.digest for name, blob in blobs.items()}
        contents = describe_contents(
            {name: store.verified_path(blob, once=True) for name, blob in files.items()},
            {name: compiled[unit].methods[name].constants for name, unit in unit_of.items()},
            {name: compiled[unit].object.named_keys(name) for name, unit in unit_of.items()},
        )
        sizes = {name: {"digest": blob.digest, "size": blob.size} for name, blob in blobs.items()}
        manifest = _make_manifest(action, compiled, sizes)
        if entries := [unit.etrecord for unit in compiled.values() if unit.etrecord]:
            joined = etrecord.join_etrecords(entries, order, store)
            files[etrecord.FILE] = joined.digest
            manifest["etrecord"] = {"digest": joined.digest, "size": joined.size}
        files[MANIFEST] = store.put(record_bytes(manifest))
        files[CONTENTS] = store.put(record_bytes(contents))
        # Who finds a package spares its methods too.
        store.put_result(
            action.key, {"files": files}, stages.total + spent, stages.seconds(), stages.peak
        )
        deliver({"files": files})


def _check_patterns(action: Action[LinkInputs], compiled: Mapping[str, CompiledUnit]) -> None:
    """Raise PipelineError for patterns of weights that fit none: planning does not know the names
    of constants that quantizing and passes make."""
    names = {
        name
        for unit in compiled.values()
        for method in unit.methods.values()
        for tensor in method.constants["tensors"].values()
        for name in tensor["names"]
    }
    modules = {name.rpartition(".")[0] for name in names}
    found = find_unfitting(action.inputs.emit, names, modules)
    if lines := [f"{path}: {what}; {known}" for path, what, known in found]:
        raise PipelineError(*lines)


def _load_units(action: Action[LinkInputs], store: Store) -> tuple[dict[str, CompiledUnit], float]:
    """Return the compile units by name, and the seconds that they took."""
    compiled, spent = {}, 0.0
    for unit, compile_digest in action.inputs.compiles.items():
        if (entry := store.get(compile_digest)) is None:
            raise MissingBlobError(f"the object of {action.package}/{unit} is not in the store")
        compiled[unit] = CompiledUnit.from_json(entry.result)
        spent += entry.seconds
    return compiled, spent


def _make_manifest(
    action: Action[LinkInputs], compiled: Mapping[str, CompiledUnit], files: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest, which holds neither times nor paths nor names of machines; of the files
    it is given digests and sizes in bytes."""
    inputs = action.inputs
    methods = {
        name: {
            "program": inputs.programs[name],
            "unit": unit,
            "lowering": inputs.lowering[name],
            "quantized": inputs.quantizes.get(name),
            **method.manifest(),
        }
        for unit, result in compiled.items()
        for name, method in result.methods.items()
    }
    objects = {}
    for unit, result in compiled.items():
        parts = result.object.to_json()
        compile_digest = inputs.compiles[unit]
        objects[unit] = {"action": compile_digest, "object": hash_json(parts), "parts": parts}
    libraries = {n: m.operators for result in compiled.values() for n, m in result.methods.items()}
    return {
        "format": _FORMAT,
        "package": action.package,
        "model": action.model,
        "target": action.key["target"],
        "action": action.digest,
        "toolchain": action.key["toolchain"],
        "host": inputs.host,  # where it can matter: a calibration's last bits depend on it
        "emit": inputs.emit,
        "constant_methods": dict(action.key["constant_methods"]),
        "order": action.key["order"],
        "operators": join_libraries(libraries),
        "methods": methods,
        "objects": objects,
        "files": files,
    }
