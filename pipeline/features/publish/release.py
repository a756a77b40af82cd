"""Releases: the published files of a package, with their digests and verdicts.

A release is named by the digest of everything published, including the model card, so the same
build has the same name, and different contents never share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from blake3 import blake3

from pipeline.features.publish.card import make_card
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status, validate_status
from pipeline.report.records import read_fitting, read_manifest
from pipeline.report.verdicts import Verdict, is_accepted, worst_verdict
from pipeline.store.digest import PIECE, hash_json, read_pieces
from pipeline.store.errors import PipelineError
from pipeline.store.files import CONTENTS, CONTRACT, MANIFEST, REPORT

Json = Mapping[str, Any]
Content: TypeAlias = Path | bytes
CARD = "README.md"  # the name that hubs give a model card
PART = 1 << 25  # bytes that a client downloads and checks at a time
HOST = "executorch"  # the wheel's runtime, on the build machine
_ATTEST = "attest"  # the section of a package's state that `doit attest` writes
_KINDS = {".pte": "program", ".ptd": "data", ".jsonl": "attestation", ".md": "card"}


def find_contents(plan: Plan, package: str) -> dict[str, Content]:
    """Return the content of each file of a release by name, including the model card.

    Raises:
        PipelineError: the package is out of date, did not pass, or has no readable records.
    """
    _check(plan, package)
    folder = plan.workspace.package(package)
    manifest = read_manifest(plan.workspace, package)
    report = read_fitting(folder / REPORT)
    if manifest is None or report is None:
        raise PipelineError(
            f"{package}: its manifest can't be read; run `doit {package}` first"
        )
    names = [*manifest["files"], MANIFEST, *_find_attestation(plan, package, manifest)]
    contract = read_fitting(folder / CONTRACT)
    if contract is not None:
        names.append(CONTRACT)
    contents: dict[str, Content] = {name: folder / name for name in sorted(names)}
    config = plan.configs.config(package)
    publish = getattr(config, "publish", None)
    said = publish.model_dump() if publish else {}
    inside = read_fitting(folder / CONTENTS)
    contents[CARD] = make_card(manifest, report, inside, contract, said).encode()
    return contents


def _check(plan: Plan, package: str) -> None:
    """Raise PipelineError if a package is out of date or its verdict is not accepted."""
    plan.check(package)
    first = f"run `doit {package}` first"
    lowered = link_status(plan, package)
    if not lowered.current:
        raise PipelineError(
            f"{package}: its build is out of date ({lowered.reason}); {first}"
        )
    validated = validate_status(plan, package)
    if not validated.current:
        raise PipelineError(
            f"{package}: its current build is not validated ({validated.reason}); {first}"
        )
    state = plan.workspace.state(package)["validate"]
    verdict: Verdict = state.get("verdict", "not run")
    if is_accepted(verdict, (*state.get("allow", ()), *plan.workspace.allow)):
        return
    hint = f"see build/{package}/report.md"
    if verdict != "failed":
        hint += f"; `--allow {verdict.replace(' ', '-')}` publishes it"
    raise PipelineError(f"{package}: is not published: {verdict}; {hint}")


def _find_attestation(plan: Plan, package: str, manifest: Json) -> Sequence[str]:
    """Return the files of this build's attestation, empty if there is none."""
    record = plan.workspace.state(package).get(_ATTEST, {})
    # An attestation of an earlier build names other bytes.
    if record.get("action") != manifest.get("action"):
        return ()
    folder = plan.workspace.package(package)
    return [name for name in record.get("files", ()) if (folder / name).is_file()]


def describe_release(plan: Plan, package: str, contents: Mapping[str, Content]) -> Json:
    """Return the record of a release, as listed in the index.

    `path` is the release's folder below the address; it begins with the package's name.

    Raises:
        PipelineError: a file can't be read, or differs from the one that the manifest names.
    """
    folder = plan.workspace.package(package)
    manifest = read_manifest(plan.workspace, package)
    report = read_fitting(folder / REPORT)
    assert manifest is not None and report is not None
    files = [describe_file(name, content) for name, content in contents.items()]
    for file in files:
        # The manifest doesn't list itself, the card, the contract or an attestation.
        built = manifest["files"].get(file["name"], {"digest": file["blake3"]})
        if built["digest"] != file["blake3"]:
            raise PipelineError(
                f"{package}: {file['name']} changed while it was published; run again"
            )
    record = {
        "package": package,
        "model": manifest["model"],
        "target": manifest["target"] or "any",
        "executorch": manifest["toolchain"].get("executorch", ""),
        "verdict": report["verdict"],
        "devices": find_verdicts(report),
        "files": files,
    }
    digest = hash_json(record)
    return {**record, "digest": digest, "path": f"{package}/{digest[:12]}"}


def find_verdicts(report: Json) -> dict[str, Verdict]:
    """Return the worst verdict of a report's methods by device, including `HOST`."""
    by_device: dict[str, list[Verdict]] = {HOST: []}
    for method in report["methods"]:
        by_device[HOST].append(method["verdict"])
        for device, facts in (method.get("devices") or {}).items():
            by_device.setdefault(device, []).append(facts["verdict"])
    return {device: worst_verdict(verdicts) for device, verdicts in by_device.items()}


def describe_file(name: str, content: Content) -> dict[str, Any]:
    """Return the record of a file: kind, size in bytes, and digests.

    A large file also has `parts`, each with its `offset` and `size` in bytes. Raises PipelineError
    if the file can't be read.
    """
    whole = hashlib.sha256()
    digest = blake3()
    parts = list[dict[str, Any]]()
    size = 0
    try:
        for part in _split(iter_pieces(content)):
            whole.update(part)
            digest.update(part)
            sha256 = hashlib.sha256(part).hexdigest()
            parts.append({"offset": size, "size": len(part), "sha256": sha256})
            size += len(part)
    except OSError as error:
        raise PipelineError(f"{name}: cannot be read: {error.strerror}") from error
    record = {
        "name": name,
        "kind": _KINDS.get(Path(name).suffix, "record"),
        "size": size,
        "sha256": whole.hexdigest(),
        "blake3": digest.hexdigest(),
    }
    return record if len(parts) < 2 else {**record, "parts": parts}


def iter_pieces(content: Content) -> Iterator[bytes]:
    """Yield the content of a file in pieces. Raises OSError."""
    if isinstance(content, Path):
        yield from read_pieces(content)
        return
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


def _split(pieces: Iterator[bytes]) -> Iterator[bytearray]:
    """Yield the pieces joined into parts of `PART` bytes, then the remainder."""
    part = bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART:  # a multiple of a piece's size
            yield part
            part = bytearray()
    if part:
        yield part
