"""Packages in `build/`: the manifest that explains one, and how files get there from the store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.plan.actions import Action
from pipeline.store.digest import Digest, of_json
from pipeline.store.files import copy_atomically, sweep
from pipeline.store.workspace import Workspace

MANIFEST_FORMAT = 1


def make_manifest(
    action: Action, compiled: Mapping[str, Mapping[str, Any]], files: Mapping[str, Any]
) -> dict[str, Any]:
    """What is in a package and what it was made from, without times, paths or names of machines.

    Args:
        action: the link action.
        compiled: results of the compile actions by unit.
        files: digest and size in bytes of each file.
    """
    where = action.where
    methods = {
        name: {
            "program": where["programs"][name],
            "unit": unit,
            "lowering": where["lowering"][name],
            "quantized": where["quantizes"].get(name),
            "delegation": result["delegation"][name],
            "signature": result["signatures"][name],
            # Places in the program, not lines of its source: those would change where this doesn't.
            **(
                {"debug_handles": handles} if (handles := result["debug_handles"].get(name)) else {}
            ),
            # Places in the program that was lowered, the quantized one where there is one.
            "instructions": result["instructions"][name],
            # Operators of a quantized method's control flow, which no quantizer looks into.
            **({"left_float": number} if (number := result["left_float"].get(name)) else {}),
        }
        for unit, result in compiled.items()
        for name in result["delegation"]
    }
    units = {
        unit: {
            "action": where["compiles"][unit],
            "object": of_json(result["object"]),
            "parts": result["object"],
        }
        for unit, result in compiled.items()
    }
    return {
        "format": MANIFEST_FORMAT,
        "package": action.package,
        "model": action.model,
        "target": action.key["target"],
        "action": action.digest,
        "toolchain": action.key["toolchain"],
        "host": where["host"],  # where it can matter: a calibration's last bits depend on it
        "emit": where["emit"],
        "constant_methods": dict(action.key["constant_methods"]),
        "order": action.key["order"],
        "methods": methods,
        "objects": units,
        "files": files,
    }


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()


def install_result(workspace: Workspace, action: Action, result: Mapping[str, Any]) -> None:
    """Puts what an action once gave into `build/`. Raises MissingBlobError."""
    install(workspace, action, result["files"], **result.get("facts", {}))


def install(
    workspace: Workspace, action: Action, files: Mapping[str, Digest], **facts: Any
) -> None:
    """Copies an action's files from the store into the package's folder and records them.

    The record is removed first and written last, so that a kill in between leaves a package that
    is stale, never one that looks whole. Files of an earlier build that are no longer made go.
    """
    package = str(action.package)
    section = action.kind
    state = workspace.state(package)
    earlier = state.pop(section, {}).get("files", {})
    workspace.write_state(package, state)
    folder = workspace.package(package)
    for name in earlier.keys() - files.keys():
        (folder / name).unlink(missing_ok=True)
        _remove_empty(folder, name)
    for name, blob in sorted(files.items()):
        copy_atomically(workspace.store.known_path(blob), folder / name)
    record = {"action": action.digest, "files": dict(files), **facts}
    if section == "link":
        state["compile"] = dict(action.where["compiles"])
        state["quantize"] = dict(action.where["quantizes"])
    workspace.write_state(package, {**state, section: record})


def clean(workspace: Workspace, package: str, dryrun: bool = False) -> list[str]:
    """Removes what builds of the package left in `build/`, and nothing else; returns the names."""
    state = workspace.state(package)
    folder = workspace.package(package)
    recorded = {
        name for kind in ("link", "validate") for name in state.get(kind, {}).get("files", {})
    }
    removed = sorted(name for name in recorded if _inside(name) and (folder / name).is_file())
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


def _inside(name: str) -> bool:
    """Whether a record's name can only be that of a file in the package's folder."""
    return not name.startswith("/") and ".." not in name.split("/")


def _remove_empty(folder: Path, name: str) -> None:
    """The folders in a package's in which a file was, as far as they are empty."""
    for parent in (folder / name).parents:
        if parent == folder or folder not in parent.parents:
            return
        try:
            parent.rmdir()
        except OSError:
            return
