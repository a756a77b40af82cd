"""Packages in `build/`: how files get there from the store, and are removed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.plan.actions import Action, LinkInputs
from pipeline.plan.kinds import KINDS
from pipeline.store.digest import Digest
from pipeline.store.files import copy_atomically, sweep
from pipeline.store.store import MissingBlobError
from pipeline.store.workspace import Workspace


def install(workspace: Workspace, action: Action, result: Mapping[str, Any]) -> None:
    """Copy the files of an action's result into the package's folder and record them.

    The record is removed first and written last, so that a kill in between leaves a package that
    is stale, never one that looks whole. Files of an earlier build that are no longer made go.
    The result has `files` by name, and `facts` for the record, if any. Raises MissingBlobError.
    """
    package, section = str(action.package), action.kind
    files: dict[str, Digest] = dict(result["files"])
    state = workspace.state(package)
    earlier = state.pop(section, {}).get("files", {})
    workspace.write_state(package, state)
    folder = workspace.package(package)
    for name in earlier.keys() - files.keys():
        (folder / name).unlink(missing_ok=True)
        _remove_empty(folder, name)
    for name, blob in sorted(files.items()):
        copy_atomically(workspace.store.verified_path(blob, once=True), folder / name)
    record = {"action": action.digest, "files": files, **result.get("facts", {})}
    if isinstance(action.inputs, LinkInputs):
        state["compile"] = dict(action.inputs.compiles)
        state["quantize"] = dict(action.inputs.quantizes)
    workspace.write_state(package, {**state, section: record})


def install_stored(workspace: Workspace, action: Action) -> bool:
    """Install what the store has of an action; return whether it has all of it."""
    with suppress(MissingBlobError):
        if entry := workspace.store.get(action.digest):
            install(workspace, action, entry.result)
            return True
    return False


def clean(workspace: Workspace, package: str, dryrun: bool = False) -> list[str]:
    """Remove what builds of the package left in `build/`, and nothing else; return the names."""
    state = workspace.state(package)
    folder = workspace.package(package)
    recorded = {
        name
        for kind in KINDS.values()
        if kind.installed
        for name in state.get(kind.name, {}).get("files", {})
    }
    # A record that someone changed may name files outside the folder.
    inside = {n for n in recorded if not n.startswith("/") and ".." not in n.split("/")}
    removed = sorted(name for name in inside if (folder / name).is_file())
    if not dryrun:
        for name in removed:
            (folder / name).unlink()
            _remove_empty(folder, name)
        sweep(folder)
        shutil.rmtree(workspace.logs / package, ignore_errors=True)
        workspace.forget_state(package)
        with suppress(OSError):
            folder.rmdir()
    return [f"{workspace.build.name}/{package}/{name}" for name in removed]


def _remove_empty(folder: Path, name: str) -> None:
    """Remove the folders inside a package's in which a file was, as far as they are empty."""
    with suppress(OSError):
        for parent in (folder / name).parents:
            if folder not in parent.parents:
                return
            parent.rmdir()
