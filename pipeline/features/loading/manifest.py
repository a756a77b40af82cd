"""Reads the manifest in a package's folder, and checks the package's files against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import PipelineError, listed
from pipeline.store.files import MANIFEST
from pipeline.store.forms import FileName, Size, check_of
from pipeline.store.reasons import reason

_fits = check_of(
    {
        "files": {FileName: {"digest": Digest, "size?": Size}},
        "methods": {str: {"signature?": {}}},
    },
    open_fields=True,
)


def read_manifest(pte: Path, content: bytes) -> dict[str, Any]:
    """Return a package's manifest, or one without files and methods if there is none.

    Raises:
        PipelineError: the manifest is damaged, or belongs to another package.
    """
    path = pte.parent / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {"files": {}, "methods": {}}
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(pte, reason(error)) from None
    if not _fits(manifest):
        raise _unreadable(pte, "it isn't the manifest of a package")
    digests = {name: file["digest"] for name, file in manifest["files"].items()}
    # Compare contents, not names: an app may have renamed the file.
    if hash_bytes(content) not in digests.values():
        raise PipelineError(
            f"{pte.name}: {MANIFEST} next to it belongs to another file: it describes "
            f"{', '.join(digests)} "
            "with other contents; build the package again, or remove the manifest"
        )
    return manifest


def _unreadable(pte: Path, why: str) -> PipelineError:
    return PipelineError(
        f"{pte.name}: the {MANIFEST} next to it can't be read: {why}; build the package again"
    )


def memory_planning(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the memory planning settings of a manifest, or {} if it has none."""
    emit = manifest.get("emit")
    planning = emit.get("memory_planning") if isinstance(emit, dict) else None
    return planning if isinstance(planning, dict) else {}


def find_ptds(pte: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """Return the paths of the `.ptd` files that a manifest names.

    Raises:
        PipelineError: one of the files is missing.
    """
    paths = [pte.parent / name for name in _ptds_of(manifest)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise PipelineError(
            f"{pte.name}: needs {listed(missing)}, which is not next to it; put it there, or "
            "pass it as `ptds`"
        )
    return paths


def _ptds_of(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    files = sorted(manifest["files"].items())
    return {name: file for name, file in files if name.endswith(".ptd")}


def check_ptds(
    ptds: Mapping[Path, bytes], pte: Path, manifest: Mapping[str, Any]
) -> None:
    """Check that the `.ptd` files are the ones that a package was built with.

    Raises:
        PipelineError: a file comes from another build, so its weights would be wrong, or one is
            missing.
    """
    if not manifest["files"]:
        return
    files = _ptds_of(manifest)
    expected_digests = {file["digest"] for file in files.values()}
    digests = set()
    for ptd, content in ptds.items():
        digest = hash_bytes(content)
        digests.add(digest)
        if digest not in expected_digests:
            _refuse(pte, ptd, digest, len(content), files)
    missing = [name for name, file in files.items() if file["digest"] not in digests]
    if missing:
        raise PipelineError(
            f"{pte.name}: needs {', '.join(missing)} too; pass all its .ptd files"
        )


def _refuse(
    pte: Path, ptd: Path, digest: str, size: int, files: Mapping[str, Mapping[str, Any]]
) -> NoReturn:
    """Raise PipelineError because a file isn't one of a package's `.ptd` files."""
    expected = files.get(ptd.name)
    if expected is None:
        names = ", ".join(files)
        needs = (
            f"it needs the {names} that it was built with" if files else "it needs none"
        )
        raise PipelineError(
            f"{pte.name}: {ptd.name} is not a file of this package; {needs}"
        )
    actual_text, expected_text = f"{size:,} bytes", f"{expected.get('size', 0):,} bytes"
    # If the sizes are equal, only the digests tell the files apart.
    if actual_text == expected_text:
        actual_text, expected_text = (
            f"digest {digest[:12]}",
            str(expected["digest"])[:12],
        )
    raise PipelineError(
        f"{pte.name}: {ptd.name} is damaged, or from another build: {actual_text}, not "
        f"{expected_text}; use the file that it was built with"
    )
