"""Earlier measurements of a package, read from the store without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.file_digests import FileDigests
from pipeline.store.workspace import Workspace


def is_measured(action: Action, workspace: Workspace) -> bool:
    """Return whether the package of a validate action was measured before.

    If so, the action can judge it without running it.
    """
    entry = workspace.store.get_by_key(action.key["measured"])
    return entry is not None and workspace.store.intact(entry.result["blobs"])


def find_measured(
    action: Action[ValidateInputs], workspace: Workspace
) -> Mapping[str, Any] | None:
    """Return an earlier record of the same package, measured under the same conditions.

    Its source lines are updated to the current sources. Returns None if there is no record, or if
    the current lines can't be found. Raises SourceError.
    """
    entry = workspace.store.get_by_key(action.key["measured"])
    if entry is None or not workspace.store.intact(entry.result["blobs"]):
        return None
    record = json.loads(workspace.store.read(entry.result["record"]))
    quotes = record.pop("quotes")
    if quotes["sources"] == action.inputs.traced:
        return record
    return next(call_all("quote_anew", record, quotes, action.inputs, workspace), None)


def check_files(
    folder: Path, files: Mapping[str, Digest], file_digests: FileDigests
) -> None:
    """Raise PipelineError if a package's files are not those that were planned."""
    for name, content in files.items():
        if file_digests.hash(folder / name) != content:
            raise PipelineError(
                f"{folder.name}/{name}: changed while the build ran; run again"
            )
