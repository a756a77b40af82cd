"""Finds a package's result in the store or a remote, and checks that it fits the action.

A digest proves that bytes are those that someone named, not that they are a package. The check
proves nothing either; whom to trust is a matter of signatures. It keeps mistaken or malformed
results out of `build/`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from pipeline.moments import find_link_files
from pipeline.plan.actions import Action
from pipeline.run.install import install
from pipeline.store.digest import Digest
from pipeline.store.files import ETRECORD, MANIFEST, REPORT
from pipeline.store.pieces import Piece, blobs_of_files, find_size, iter_content
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

Result = Mapping[str, Any]
# File identifiers, found in bytes 4 to 7, by suffix.
_IDENTIFIERS = {".pte": b"ET12", ".ptd": b"FT01", ".bpte": b"BP08"}
_LARGEST = 1 << 28  # bytes, the limit for a JSON record
_log = logging.getLogger(__name__)


def install_stored(workspace: Workspace, action: Action) -> bool:
    """Install the stored result of an action if it is complete and fits; return whether it was."""
    with suppress(MissingBlobError):
        if (result := find_stored(workspace.store, action)) is not None:
            install(workspace, action, result)
            return True
    return False


def find_stored(store: Store, action: Action) -> Mapping[str, Any] | None:
    """Return the stored result of an action if it is complete and fits the action, or None."""
    with suppress(MissingBlobError):
        if entry := store.get(action.digest):
            if not (wrong := find_mismatch(store, action, entry.result)):
                return entry.result
            _log.warning(
                "the store's result of %s is not used: %s", action.title, wrong
            )
    return None


def find_mismatch(store: Store, action: Action, result: Result) -> str:
    """Return which file of a result doesn't fit the action, or "" if all do.

    Raises MissingBlobError.
    """
    check: dict[str, Callable[[Store, Action, Result], str]] = {
        "link": _find_wrong_manifest,
        "validate": _find_wrong_report,
    }
    return find_wrong_content(store, result) or check[action.kind](
        store, action, result
    )


def find_wrong_content(store: Store, result: Result) -> str:
    # Imports typing_extensions, which a no-op run doesn't need.
    from pipeline.report.records import find_form, fits_name

    for blob in blobs_of_files(result):
        store.verified_path(blob, once=True)
    for name, blob in result["files"].items():
        start = b"".join(islice(iter_content(_pieces(result, name), store), 2))
        for suffix, identifier in _IDENTIFIERS.items():
            if name.endswith(suffix) and start[4:8] != identifier:
                return f"{name} is not a {suffix} file"
        if find_form(name) is not None and not fits_name(name, _read(store, blob)):
            return f"{name} does not have the form of such a record"
    return ""


def _pieces(result: Result, name: str) -> Sequence[Piece]:
    pieces: Sequence[Piece] = result.get("joined", {}).get(
        name, [("blob", result["files"][name])]
    )
    return pieces


def _read(store: Store, blob: Digest) -> Any:
    path = store.verified_path(blob, once=True)
    try:
        return (
            json.loads(path.read_bytes()) if path.stat().st_size <= _LARGEST else None
        )
    except (ValueError, RecursionError):
        return None


def _find_wrong_manifest(store: Store, action: Action, result: Result) -> str:
    """Check that the manifest belongs to this action and lists these files with their sizes."""
    files = result["files"]
    manifest, key = _read(store, files[MANIFEST]), action.key
    companions = (MANIFEST, ETRECORD, *find_link_files())
    linked = {name: blob for name, blob in files.items() if name not in companions}
    sizes = {name: find_size(_pieces(result, name), store) for name in linked}
    facts: dict[str, tuple[Any, Any]] = {
        "package": (manifest["package"], action.package),
        "model": (manifest["model"], action.model),
        "target": (manifest["target"], key["target"]),
        "action": (manifest.get("action"), action.digest),
        "toolchain": (manifest["toolchain"], key["toolchain"]),
        "order": (manifest["order"], key["order"]),
        "methods": (sorted(manifest["methods"]), sorted(key["order"])),
        "programs": (
            {name: method["program"] for name, method in manifest["methods"].items()},
            dict(action.inputs.programs),
        ),
        "files": (
            manifest["files"],
            {
                name: {"digest": blob, "size": sizes[name]}
                for name, blob in linked.items()
            },
        ),
    }
    wrong = [name for name, (value, expected) in facts.items() if value != expected]
    return f"{MANIFEST} has another {wrong[0]}" if wrong else ""


def _find_wrong_report(store: Store, action: Action, result: Result) -> str:
    """Check that the report is about this package and its files, and is of a success."""
    report = _read(store, result["files"][REPORT])
    facts = report["package"], report["ok"], report.get("files")
    expected = action.package, True, action.key["measured"]["files"]
    return "" if facts == expected else f"{REPORT} belongs to another package"
