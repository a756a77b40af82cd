"""Verifies a folder against its attestations, relying only on the public keys of their signers.

The folder is data from strangers: reads are bounded, no name may lead out of the folder, and no
link is followed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.features.provenance.attestation import (
    BUNDLE_SUFFIX,
    PROVENANCE,
    STATEMENT,
)
from pipeline.features.provenance.envelopes import MOST_BYTES, open_bundle
from pipeline.store.errors import PipelineError, listed, plural, shown
from pipeline.store.files import is_plain, read_text_file
from pipeline.store.forms import check_of
from pipeline.store.names import is_file_path

_MOST_FILES = 100_000


_FILE = {"name": str, "digest": {"sha256": str}}
_STATEMENT = {
    "subject": [_FILE],
    "predicate": {
        "buildDefinition?": {"resolvedDependencies?": list[Any]},
        "runDetails": {"byproducts?": [_FILE]},
    },
}
_SOURCE = {"name": str, "digest": {"gitCommit": str}}


class _Attested(NamedTuple):
    """The files that a provenance names: SHA-256 by path in the verified folder.

    `subjects` must be present; `reports` may be absent. `commit` is the commit of the sources, or
    "" if the provenance names none, and `changed` says whether tracked files differed from it.
    """

    signer: str
    subjects: Mapping[str, str]
    reports: Mapping[str, str]
    commit: str
    changed: bool


def verify_folder(
    folder: Path, keys: Any, commit: str = ""
) -> tuple[list[str], list[str]]:
    """Verify the files of a folder against the attestations in the folder and its subfolders.

    A trusted key must have signed each attestation. All files that it names must be next to it with
    the attested content (reports may be absent), and there may be no other file. If a commit is
    given, all of them must be built from it. Returns the facts that hold for the folder and the
    problems found, a line each.

    Raises PipelineError if the folder can't be read.
    """
    files = _list_files(folder)
    bundles = [name for name in files if name.endswith(BUNDLE_SUFFIX)]
    findings: list[str] = []
    problems: list[str] = []
    named, all_read = {*bundles}, True
    present = {*files}
    for bundle in bundles:
        try:
            found = _read_bundle(folder, bundle, keys)
        except ValueError as error:
            problems.append(f"{bundle}: {error}")
            all_read = False
            continue
        for attested in found:
            named |= {*attested.subjects, *attested.reports}
            if wrong := _find_wrong_commit(attested, commit):
                problems.append(f"{bundle}: {wrong}")
                continue
            finding, wrong_files = _compare(folder, present, bundle, attested)
            findings += [finding] if not wrong_files else []
            problems += wrong_files
    if not bundles:
        problems.append(f"no attestation: no file in it is called *{BUNDLE_SUFFIX}")
    elif all_read:  # otherwise some named files are unknown
        problems += [
            f"{name}: is not in any attestation" for name in files if name not in named
        ]
    return findings, problems


def _list_files(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, including links and anything else but folders.

    Raises PipelineError.
    """
    found: list[str] = []

    # `os.walk` skips folders that it can't read, unless it is given an `onerror` function.
    def refuse(error: OSError) -> None:
        raise PipelineError(f"{folder}: cannot be read: {error.strerror}") from error

    try:
        for where, folders, names in os.walk(folder, onerror=refuse):
            # `os.walk` lists a link to a folder among the folders and doesn't enter it.
            links = [
                name for name in folders if os.path.islink(os.path.join(where, name))
            ]
            found += [
                os.path.relpath(os.path.join(where, n), folder)
                for n in (*names, *links)
            ]
            if len(found) > _MOST_FILES:
                raise PipelineError(f"{folder}: has more than {_MOST_FILES:,} files")
    except RecursionError as error:
        raise PipelineError(f"{folder}: is nested too deeply") from error
    return sorted(name.replace(os.sep, "/") for name in found)


def _read_bundle(folder: Path, bundle: str, keys: Any) -> list[_Attested]:
    """Return the provenances of a bundle that a trusted key signed.

    Raises ValueError if there is none, or if one has another form.
    """
    path, where = folder / bundle, bundle[: bundle.rfind("/") + 1]
    try:
        if not is_plain(path):
            raise ValueError("is not a file")
        found, reasons = open_bundle(read_text_file(path, MOST_BYTES), keys)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    kinds = {"_type": STATEMENT, "predicateType": PROVENANCE}
    own = [
        each
        for each in found
        if isinstance(each[0], dict) and kinds.items() <= each[0].items()
    ]
    if not own:
        raise ValueError(reasons[0] if reasons else "contains no provenance")
    return [_parse(statement, signer, where) for statement, signer in own]


def _parse(statement: Mapping[str, Any], signer: str, where: str) -> _Attested:
    """Return the files that a provenance in the folder `where` names. Raises ValueError."""
    is_statement = check_of(_STATEMENT, open_fields=True)
    if not is_statement(statement) or not statement["subject"]:
        raise ValueError("its provenance names no files by SHA-256")
    byproducts = statement["predicate"]["runDetails"].get("byproducts", ())
    subjects, reports = (
        {each["name"]: each["digest"]["sha256"] for each in side}
        for side in (statement["subject"], byproducts)
    )
    if wrong := [name for name in (*subjects, *reports) if not is_file_path(name)]:
        raise ValueError(f"names {shown(wrong[0])}, which is not a file name")
    definition = statement["predicate"].get("buildDefinition", {})
    made_from = definition.get("resolvedDependencies", ())
    sources = list(filter(check_of(_SOURCE, open_fields=True), made_from))
    source = sources[0] if sources else {"digest": {"gitCommit": ""}}
    return _Attested(
        signer,
        {where + name: digest for name, digest in subjects.items()},
        {where + name: digest for name, digest in reports.items()},
        source["digest"]["gitCommit"],
        "annotations" in source,
    )


def _find_wrong_commit(attested: _Attested, commit: str) -> str:
    """Return how a provenance contradicts the commit its files must be built from, or ""."""
    if not commit:
        return ""
    if not attested.commit:
        return f"names no commit, must name {commit[:12]}"
    if attested.commit != commit:
        return f"was built from commit {shown(attested.commit[:12])}, not from {commit[:12]}"
    return (
        f"was built from commit {commit[:12]} with changes" if attested.changed else ""
    )


def _compare(
    folder: Path, present: Collection[str], bundle: str, attested: _Attested
) -> tuple[str, list[str]]:
    """Compare the files that a provenance names with their digests.

    Returns a line that counts the files, and a line for each problem.
    """
    missing, problems = [], []
    expected = {**attested.reports, **attested.subjects}
    for name, digest in sorted(expected.items()):
        if name in present:
            if wrong := _find_wrong(folder / name, digest):
                problems.append(f"{name}: {wrong}")
        elif name in attested.subjects:
            problems.append(f"{name}: is missing, and {bundle} names it")
        else:
            missing.append(name)
    count = plural(len(expected) - len(missing), "file")
    without = f"; without {listed(missing, 3)}" if missing else ""
    return (
        f"{bundle}: {count} as attested, signed by {attested.signer[:16]}{without}",
        problems,
    )


def _find_wrong(path: Path, digest: str) -> str:
    """Return why a file doesn't match this SHA-256, or ""."""
    if not is_plain(path):
        return "is not a file"
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if found == digest else "differs from its attestation"
