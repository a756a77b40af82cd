"""Downloads the hub model that a source names, before its exporter runs.

An exporter that makes network requests would have to run in each build, since the next answer is
unknown. So the download is a process of its own, and the exporter reads the files that it left in
huggingface_hub's cache, whose content is in the key of the export.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipeline.features.transformers.hub import (
    download,
    is_commit,
    is_on_hub,
    resolve_commit,
)
from pipeline.features.transformers.source_file import (
    SOURCE,
    merge_parameters,
    read_options,
)
from pipeline.plan.kinds.export import ExportInputs
from pipeline.run.isolated import run_isolated
from pipeline.run.stages import Stages
from pipeline.store.errors import SourceError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace


def fetch_source(workspace: Workspace, inputs: ExportInputs, stages: Stages) -> None:
    """Download the hub model that `models/<model>.yaml` names, unless it is in the cache.

    The store keeps the digests of a commit's files, so a second run makes no request to a hub.

    Raises:
        SourceError: the file is invalid, the revision is not a commit, or the model can't be
            downloaded (`hub.download`).
    """
    file = workspace.root / inputs.path
    if file.suffix != ".yaml":
        return
    options = merge_parameters(file, read_options(file), inputs.parameters)
    if options.get("revision") and is_on_hub(workspace.root, options[SOURCE]):
        with stages.stage("download"):
            _fetch(workspace.store, inputs.path, options)


def _fetch(store: Store, file: str, options: Mapping[str, Any]) -> None:
    name, revision = options[SOURCE], options["revision"]
    if not is_commit(revision):
        commit = run_isolated(partial(resolve_commit, name, revision))
        raise SourceError(
            f"{file}: revision: {revision} of {name} can change; use its current commit: "
            f"`revision: {commit}`"
        )
    key = {"kind": "hub-files", "version": 1, "name": name, "commit": revision}
    entry = store.get_by_key(key)
    digests = entry.result["files"] if entry else None
    trusts_code = options.get("trust_remote_code", False)
    listing = run_isolated(partial(download, name, revision, digests, trusts_code))
    if listing and not digests:
        store.put_result(key, {"files": listing}, pushes=False)
