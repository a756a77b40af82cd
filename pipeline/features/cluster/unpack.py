"""Performs the action of a parcel, in a separate process of a cluster's worker.

The request is accepted only if this process computes the same key from the same inputs, with its
own code, libraries and machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.features.cluster.forms import Json, is_parcel
from pipeline.plan.actions import Action
from pipeline.plan.key_diff import describe_differences
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.requests import read_names, read_request
from pipeline.run.performed import Report
from pipeline.run.worker import run
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError
from pipeline.store.files import copy_atomically
from pipeline.store.json_diff import diff_json
from pipeline.store.pieces import blobs_of_files
from pipeline.store.settings_reader import open_settings
from pipeline.store.store import MissingBlobError
from pipeline.store.toolchain import code
from pipeline.store.workspace import Workspace, open_store
from pipeline.validate.crashes import CrashLog

Key = Mapping[str, Any]
# Fields of keys that are facts about a machine.
_MACHINE = {
    "host",
    "facts",
    "not_run",
    "runs_with",
}


def perform_parcel(text: str, folder: str) -> str:
    """Perform the action of a parcel with `folder` as its workspace.

    Returns the process's part of the answer as JSON.
    """
    parcel: Json = json.loads(text)
    if not is_parcel(parcel):
        return json.dumps(
            {"missing": "the parcel has a format that this worker does not know"}
        )
    try:
        workspace = open_workspace(parcel, Path(folder))
        materialise(parcel, workspace)
        refused = find_differences(parcel["request"], workspace)
    except MissingBlobError as error:
        remedy = "let both use one store (PTE_PIPELINE_STORE) or remote (PTE_PIPELINE_REMOTE)"
        return json.dumps({"missing": f"{error}; {remedy}"})
    except PipelineError as error:
        refused = {"differences": [str(error)], "here": False}
    if refused is not None:
        return json.dumps({"refused": refused})
    report = run(parcel["request"], workspace, parcel["always"])
    if report.result is not None:  # a failed validation has no entry
        workspace.store.share([], blobs_of_files(report.result))
    return json.dumps({"done": _to_json(report)})


def open_workspace(parcel: Json, folder: Path) -> Workspace:
    """Open a parcel's workspace with this worker's settings.

    They come from the environment and the folder where the worker was started. Raises PipelineError
    if the build folder is outside the workspace.
    """
    listed, takes_folder = parcel["operators"]
    return Workspace(
        folder,
        open_store(open_settings(Path.cwd())),
        jobs=1,
        build_folder=_find_inside(folder, parcel["build"]),
        operators=tuple(listed),
        operators_folder=takes_folder,
        fast_lowering=parcel["fast_lowering"],
        refit=parcel["refit"],
    )


def materialise(parcel: Json, workspace: Workspace) -> None:
    """Copy the files of a parcel into its workspace, and fetch other inputs into the store.

    Everything that the action reads is fetched in advance, since an action that runs passes asks no
    remote. Raises MissingBlobError.
    """
    store = workspace.store
    store.ask(parcel["results"])
    store.fetch([*parcel["files"].values(), *parcel["blobs"]])
    for blob in parcel["blobs"]:
        # Without a remote, the build has it in its store, which must be this one, too.
        if store.remote is None and not store.has(blob):
            raise MissingBlobError(f"store {store.root}: blob {blob} is missing")
    for name, content in parcel["files"].items():
        path = _find_inside(workspace.root, name)
        blob = store.verified_path(content, once=True)
        # Not durable, since the copy is deleted with the action.
        copy_atomically(blob, path, workspace.root, durable=False)
    package = str(read_names(parcel["request"]).package)
    CrashLog(workspace.logs, package).write(parcel["crashes"])


def _find_inside(root: Path, name: str) -> Path:
    """Return a path in a workspace. Raises PipelineError if it is outside."""
    path = root / name
    if os.path.isabs(name) or ".." in path.parts:
        raise PipelineError(f"{name}: is not a path in a workspace")
    return path


def compute_key(action: Action[Any], workspace: Workspace) -> Json:
    """Return the key of an action as this process computes it, from the files in a workspace.

    Raises SourceError.
    """
    return KINDS[action.kind].key(action.inputs.renewed(workspace))


def find_differences(request: str, workspace: Workspace) -> Json | None:
    """Return how the key of a requested action would differ here, or None if it would not.

    Raises PipelineError if the action can't be read here.
    """
    requested = read_names(request)
    if requested.key["code"] != code(
        requested.kind
    ):  # the inputs may have another form, too
        return {"differences": ["pte-pipeline's own code changed"], "here": False}
    key = compute_key(read_request(request, workspace), workspace)
    if hash_json(key) == requested.digest:
        return None
    return _describe(requested, key)


def _describe(requested: Action[None], key: Key) -> Json:
    lines = describe_differences(
        requested.key, key, lambda program: None, requested.model
    )
    fields = set()
    for difference in diff_json(_flatten(requested.key), _flatten(key)):
        fields.add(difference.path[0].partition("[")[0])
    return {
        "differences": list(lines) or ["its key differs"],
        "here": fields <= _MACHINE,
    }


def _flatten(key: Key) -> Key:
    return {**key, **key.get("measured", {}), "measured": 0}


def _to_json(report: Report) -> Json:
    event = report.event._asdict()
    fields = (
        "outcome",
        "start",
        "seconds",
        "stages",
        "stage",
        "worker",
        "peak_bytes",
        "error",
    )
    counts = report.remote and (vars(report.remote[0]), report.remote[1])
    return {
        "event": {name: event[name] for name in fields},
        "usage": {kind: vars(usage) for kind, usage in report.usage.items()},
        "remote": counts,
        "result": report.result and dict(report.result),
    }
