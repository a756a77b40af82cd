"""Installs the files of packages from the store into `build/`, and removes them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, shown
from pipeline.store.files import copy_atomically, make_folder, remove, sweep
from pipeline.store.names import are_distinct, is_file_path
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.store.pieces import JoinedFile

ATTEST = "attest"  # the section of a package's state that lists its attestation files


def install(
    workspace: Workspace,
    action: Action,
    result: Mapping[str, Any],
    linked: Mapping[str, JoinedFile] = MappingProxyType({}),
) -> None:
    """Copy the files of an action's result into the package's folder and record them.

    The record is removed first and written last, so that a kill in between leaves a package that
    looks stale, never one that looks complete. If the same files are in place, it is only replaced.
    Files of an earlier build that are no longer made are removed, along with their attestations
    and, if the package changed, the reports on the earlier one. Existing files and folders are
    replaced; links are not followed.

    Args:
        result: `files` by name; `joined`, the pieces of files that are assembled here; and
            optionally `facts` for the record.
        linked: assembled files that this process has just produced and still holds.

    Raises:
        MissingBlobError: the store no longer has a file.
        PipelineError: a name leads out of the package's folder, or two names are the same on some
            file systems.
    """
    from pipeline.store.pieces import write_joined  # a no-op run installs nothing

    package, section = str(action.package), action.kind
    files: dict[str, Digest] = dict(result["files"])
    if bad := [name for name in files if not is_file_path(name)]:
        raise PipelineError(
            f"{package}: {shown(bad[0])} is not a valid file name in a package"
        )
    if not are_distinct(files):
        raise PipelineError(
            f"{package}: two of its files have the same name, ignoring case"
        )
    is_link = section == "link"
    followers = [*call_all("follow_install", workspace, package)] if is_link else []
    state = dict(workspace.state(package))
    recorded = state.pop(section, {}).get("files", {})
    earlier = recorded | state.pop(ATTEST, {}).get("files", {})
    if is_link and not earlier.items() >= files.items():
        earlier |= state.get("validate", {}).get("files", {})
    folder = workspace.package(package)
    # Another run in this workspace relies on the record if it has just installed the same files.
    if recorded != files or workspace.find_damaged(package, files):
        workspace.write_state(package, state)
    make_folder(folder, workspace.build)
    for name in earlier.keys() - files.keys():
        _remove_inside(folder, name)
    for name, blob in sorted(files.items()):
        if name in linked and linked[name].place(folder / name, workspace.build):
            continue
        if pieces := result.get("joined", {}).get(name):
            write_joined(pieces, blob, workspace.store, folder / name, workspace.build)
            continue
        source = workspace.store.verified_path(blob, once=True)
        copy_atomically(source, folder / name, workspace.build)
    record = {"action": action.digest, "files": files, **result.get("facts", {})}
    if vouchers := workspace.store.find_vouchers():
        record["vouchers"] = list(vouchers)
    for find_facts in followers:
        record |= find_facts()
    # Read again: that run may have recorded more meanwhile, such as a validation.
    state = {**workspace.state(package), section: record}
    state.pop(ATTEST, None)
    if is_link:
        state["compile"] = dict(action.inputs.compiles)
        state["quantize"] = dict(action.inputs.quantizes)
    workspace.write_state(package, state)
    if section == "validate" and state.get("link", {}).get("drops"):
        # Not part of any result: they compare with the package that was in this workspace before.
        from pipeline.report.render import write_reports

        write_reports(workspace, package)


def find_orphans(workspace: Workspace, packages: Collection[str]) -> list[str]:
    """Return the names of packages in `build/` that no config defines any more.

    Renaming a config leaves one, for example.
    """
    try:
        names = os.listdir(workspace.build / ".state")
    except OSError:
        return []
    built = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(
        name for name in built if name not in packages and not name.startswith(".")
    )


def clean(workspace: Workspace, package: str, dryrun: bool = False) -> list[str]:
    """Remove only the files that builds of the package left in `build/`; return their names.

    `dryrun` returns the names and removes nothing.
    """
    from pipeline.plan.kinds.table import KINDS  # a no-op run cleans nothing

    state = workspace.state(package)
    folder = workspace.package(package)
    sections = [*(kind.name for kind in KINDS.values() if kind.installed), ATTEST]
    recorded = {
        name for part in sections for name in state.get(part, {}).get("files", {})
    }
    removed = sorted(name for name in recorded if _is_inside(folder, name))
    if not dryrun:
        for name in removed:
            _remove_inside(folder, name)
        sweep(folder)
        with suppress(OSError):
            make_folder(workspace.logs, workspace.build)
            remove(workspace.logs / package)
        workspace.forget_state(package)
        with suppress(OSError):
            folder.rmdir()
    return [f"{workspace.build.name}/{package}/{name}" for name in removed]


def _is_inside(folder: Path, name: str) -> bool:
    """Return whether a name exists in a package's folder and no link is on the way to it."""
    path = folder / name
    on_the_way = [
        parent for parent in path.parents if folder in (parent, *parent.parents)
    ]
    return os.path.lexists(path) and not any(
        parent.is_symlink() for parent in on_the_way
    )


def _remove_inside(folder: Path, name: str) -> None:
    """Remove a file of a package, and the folders that this leaves empty."""
    if not _is_inside(folder, name):
        return
    remove(folder / name)
    with suppress(OSError):
        for parent in (folder / name).parents:
            if folder not in parent.parents:
                return
            parent.rmdir()
