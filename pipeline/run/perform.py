"""Performing an action: from its kind to the function that does it.

What a worker process runs. Each function commits what it made to the store before it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from pipeline.compile import etrecord
from pipeline.compile.inspect.contents import contents_bytes, contents_of
from pipeline.compile.link import link
from pipeline.compile.objects import object_from_json
from pipeline.plan.actions import Action, exported_blobs
from pipeline.plan.plan import Plan
from pipeline.report.files import CONTENTS, MANIFEST
from pipeline.run import compile as compiling
from pipeline.run.export import export
from pipeline.run.install import install, install_result, make_manifest, manifest_bytes
from pipeline.run.stages import WAIT, Stages
from pipeline.run.validate import validate
from pipeline.store.store import MissingBlobError
from pipeline.store.workspace import Workspace


def perform(action: Action, workspace: Workspace, stages: Stages, always: bool) -> bool:
    """Performs an action, unless another process did it while this one waited for its turn.

    Args:
        always: performs it whatever the store holds.

    Returns:
        Whether there was nothing to do.

    Raises:
        PipelineError: what a user can mend; anything else is a bug.
    """
    verbs: dict[str, Callable[..., Any]] = {
        "export": export,
        "quantize": compiling.quantize_method,
        "compile": partial(compiling.compile_unit, always=always),
        "link": link_package,
        "validate": partial(validate, always=always),
    }
    with ExitStack() as turn:
        with stages.stage(WAIT):
            turn.enter_context(workspace.store.lock(action.digest))
        if not always and _done(action, workspace):
            return True
        verbs[action.kind](action, workspace, stages)
        return False


def _done(action: Action, workspace: Workspace) -> bool:
    store = workspace.store
    if action.kind == "export":  # what it reads, and so its key, may have become known meanwhile
        action = Plan(workspace).models.export(action.model)
    result = store.result(action.digest)
    if result is None:
        return False
    if action.kind in ("link", "validate"):
        try:
            install_result(workspace, action, result)
        except MissingBlobError:
            return False
        return True
    blobs = exported_blobs(result) if action.kind == "export" else result["blobs"]
    return store.intact(blobs)


def link_package(action: Action, workspace: Workspace, stages: Stages) -> None:
    """Links the objects of a package, and puts the files into `build/`."""
    store = workspace.store
    compiled: dict[str, Any] = {}
    spent = 0.0
    for unit, compile_digest in action.where["compiles"].items():
        entry = store.entry(compile_digest)
        if entry is None:
            raise MissingBlobError(f"the object of {action.package}/{unit} is not in the store")
        compiled[unit] = entry.result
        spent += entry.seconds
    with stages.stage("link"):
        unit_of = {name: unit for unit, result in compiled.items() for name in result["delegation"]}
        units = list(dict.fromkeys(unit_of[name] for name in action.key["order"]))
        objects = [object_from_json(compiled[unit]["object"]) for unit in units]
        constants, order = dict(action.key["constant_methods"]), action.key["order"]
        linked = link(objects, constants, store, order, action.key["layout"])
    with stages.stage("store"):
        blobs = {f"{action.model}.pte": linked.pte}
        blobs |= {f"{stem}.ptd": blob for stem, blob in linked.ptds.items()}
        sizes = {name: {"digest": b.digest, "size": b.size} for name, b in blobs.items()}
        files = {name: blob.digest for name, blob in blobs.items()}
        told = contents_of(
            {name: store.known_path(blob) for name, blob in files.items()},
            {n: known for result in compiled.values() for n, known in result["constants"].items()},
            {
                name: owner.keys_of(name)
                for unit, owner in zip(units, objects, strict=True)
                for name in compiled[unit]["delegation"]
            },
        )
        made = make_manifest(action, compiled, sizes)
        if records := [result["etrecord"] for result in compiled.values() if "etrecord" in result]:
            whole = etrecord.join(records, order, store)
            files[etrecord.FILE] = whole.digest
            made["etrecord"] = {"digest": whole.digest, "size": whole.size}
        manifest = manifest_bytes(made)
        files[MANIFEST] = store.put(manifest)
        files[CONTENTS] = store.put(contents_bytes(told))
        # Who finds a package spares its methods too.
        store.put_result(action.key, {"files": files}, stages.total + spent)
        install(workspace, action, files)
