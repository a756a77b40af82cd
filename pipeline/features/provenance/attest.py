"""`doit attest`: writes signed provenance of packages, and their bills of materials."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.provenance.attestation import (
    BUNDLE_SUFFIX,
    PROVENANCE,
    make_provenance,
    make_statement,
)
from pipeline.features.provenance.bom import BOM, BOM_SUFFIX, make_bom
from pipeline.features.provenance.envelopes import INSTALL, sign_statement
from pipeline.features.provenance.keys import read_keys
from pipeline.features.provenance.materials import find_materials, find_toolchain
from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.plan.status import link_status, validate_status
from pipeline.report.records import delegated_share, read_manifest
from pipeline.run.install import ATTEST
from pipeline.store.digest import hash_file
from pipeline.store.entries import ANYONE
from pipeline.store.errors import PipelineError, plural
from pipeline.store.files import MANIFEST, record_bytes, write_atomically
from pipeline.store.revision import find_revision
from pipeline.store.toolchain import code
from pipeline.store.workspace import Workspace

_KEY = "openssl genpkey -algorithm ed25519 -out key.pem"


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Write the attestations of packages, by default all, and yield a line for each.

    Raises:
        PipelineError: some packages can't be attested; raised after all others are attested, with a
            line for each.
    """
    packages = known_packages(plan, words)
    _check_library()
    keys = read_keys(plan.workspace.root)
    if keys.signing is None:
        raise PipelineError(
            f"no key to sign with; make one (`{_KEY}`), and set signing_key"
        )
    refused = list[str]()
    for package in packages:
        try:
            yield f"{plan.workspace.build.name}/{package}/{_attest(plan, package, keys)}"
        except PipelineError as error:
            refused += error.lines
    if refused:
        raise PipelineError(*refused)


def _check_library() -> None:
    try:
        import cyclonedx  # noqa: F401
    except ImportError as error:
        raise PipelineError(
            f"attestations need cyclonedx-python-lib: {INSTALL}"
        ) from error


def _attest(plan: Plan, package: str, keys: Any) -> str:
    """Write the attestation of a package, and return a summary of it."""
    manifest, reports = _find_build(plan, package)
    # The manifest only has the toolchain of the link; the exporter and backends have their own.
    manifest["toolchain"] = find_toolchain(plan, package)
    workspace, made_by = plan.workspace, _version()
    folder, stem = workspace.package(package), Path(str(plan.file(package))).stem
    subjects = {name: _hash(folder / name, name) for name in manifest["files"]}
    materials = [
        (name, _hash(path, name, digest))
        for name, path, digest in find_materials(plan, package)
    ]
    bill = make_bom(manifest, subjects, _read_figures(folder), made_by)
    names = f"{stem}.pte{BUNDLE_SUFFIX}", f"{stem}{BOM_SUFFIX}"
    # Written before the provenance, which lists its digest.
    _write(workspace, package, names[1], record_bytes(bill))
    byproducts = {name: _hash(folder / name, name) for name in (*reports, names[1])}
    revision = find_revision(workspace.root)
    builder = {"pte-pipeline": made_by, "code": code("link")}
    provenance = make_provenance(manifest, materials, revision, byproducts, builder)
    lines = [
        sign_statement(make_statement(subjects, kind, predicate), keys)
        for kind, predicate in ((PROVENANCE, provenance), (BOM, bill))
    ]
    _write(workspace, package, names[0], b"".join(lines))
    record = {
        "action": manifest["action"],
        "files": {n: hash_file(folder / n) for n in names},
    }
    # Recorded last, so that the state names no files that aren't written yet.
    workspace.write_state(package, {**workspace.state(package), ATTEST: record})
    made_from = plural(len(materials), "file")
    return f"{names[0]}: {plural(len(subjects), 'file')}, made from {made_from}"


def _write(workspace: Workspace, package: str, name: str, content: bytes) -> None:
    write_atomically(workspace.package(package) / name, content, workspace.build)


def _find_build(plan: Plan, package: str) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest of an up-to-date package, and the names of the reports next to it.

    Raises PipelineError if the package is out of date, has no current validation, or was built
    while unsigned remote results were trusted.
    """
    plan.check(package)
    first = f"run `doit {package}` first"
    lowered = link_status(plan, package)
    if not lowered.current:
        raise PipelineError(
            f"{package}: its build is out of date ({lowered.reason}); {first}"
        )
    state = plan.workspace.state(package)
    validated = validate_status(plan, package)
    if not validated.current:
        raise PipelineError(
            f"{package}: its current build is not validated ({validated.reason}); {first}"
        )
    vouchers = [
        voucher
        for section in ("link", "validate")
        for voucher in state[section].get("vouchers", ())
    ]
    if ANYONE in vouchers:
        what = "was built while unsigned results of a remote were trusted"
        raise PipelineError(f"{package}: {what}; build it with trusted_keys instead")
    manifest = read_manifest(plan.workspace, package)
    if manifest is None or "action" not in manifest:
        raise PipelineError(f"{package}: its manifest can't be read; {first}")
    # `doit sensitivity` writes its figures next to the reports, which show them.
    figures = plan.workspace.package(package).glob("sensitivity*.json")
    names = {*state["link"]["files"], *state["validate"]["files"]}
    names |= {path.name for path in figures}
    return manifest, sorted(names - manifest["files"].keys())


def _hash(path: Path, name: str, known: str = "") -> dict[str, str]:
    """Return the digests of a file. Raises PipelineError if it differs from the known digest."""
    # Other tools check SHA-256; the build recorded BLAKE3.
    try:
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        digest = hash_file(path)
    except OSError as error:
        raise PipelineError(f"{name}: cannot be read: {error.strerror}") from error
    if known not in ("", digest):
        raise PipelineError(f"{name}: changed while it was attested; run again")
    return {"sha256": sha256, "blake3": digest}


def _read_figures(folder: Path) -> dict[str, dict[str, str]]:
    """Return the figures measured for each method, as strings by name."""
    build = next(call_all("read_build", folder / MANIFEST), None)
    found: dict[str, dict[str, str]] = {}
    for name, method in (build["figures"]["methods"] if build else {}).items():
        known = [each for each in method["sqnr_db"] or () if each is not None]
        figures: Mapping[str, Any] = {
            "lowest SQNR in dB, at most 120": min(known, default=None),
            "greatest absolute error": method["max_abs"],
            "share of nodes on delegates": _measure_share(method),
        }
        found[name] = {
            what: str(each) for what, each in figures.items() if each is not None
        }
    return found


def _measure_share(method: Mapping[str, Any]) -> float:
    share = delegated_share([method])
    if share is None:
        return 1.0  # without nodes, nothing is left to kernels
    return round(share, 4)


def _version() -> str:
    try:
        return version("pte-pipeline")
    except PackageNotFoundError:  # imported from a checkout
        return "not installed"
