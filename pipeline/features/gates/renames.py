"""Renamed packages: they have the same bytes, or are linked from the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.features.gates.figures import read_build
from pipeline.features.gates.references import Reference
from pipeline.plan.plan import Plan
from pipeline.store.digest import hash_json
from pipeline.store.errors import PipelineError, SourceError
from pipeline.store.files import MANIFEST

Json = Mapping[str, Any]


def find_renames(plan: Plan, reference: Reference) -> dict[str, str]:
    """Return the former names of packages that were only renamed, by the new name.

    A renamed package has the bytes of a package in the reference that is gone here, or would have
    them because its link has the same inputs.
    """
    if not reference.is_complete:
        return {}
    gone = reference.missing_in(plan)
    renames = {}
    for package in plan.packages:
        if package in reference.packages:
            continue
        for previous in gone:
            if _is_renamed(plan, package, reference, previous):
                renames[package] = previous
                gone.remove(previous)
                break
    return renames


def _is_renamed(plan: Plan, package: str, reference: Reference, previous: str) -> bool:
    if reference.plan is not None:
        inputs = _link_inputs(plan, package)
        if inputs and inputs == _link_inputs(reference.plan, previous):
            return True
    build = read_build(plan.workspace.package(package) / MANIFEST)
    if build is None:
        return False
    try:
        previous_build, _, _ = reference.find(previous)
    except PipelineError:
        return False
    return has_same_bytes(build, previous_build, package, previous)


def _link_inputs(plan: Plan, package: str) -> Any:
    """Return the key of a package's link without its names, or None if it can't be known yet."""
    if plan.problems(package):
        return None
    try:
        link = plan.link(package)
    except SourceError:
        return None
    return link and {**link.key, "package": "", "file": ""}


def has_same_bytes(build: Json, old: Json, package: str, previous: str) -> bool:
    """Return whether two packages have equal files, whatever the names of the files."""
    files = build["manifest"]["files"] if build["manifest"] else {}
    if old["manifest"] is not None:
        old_files = old["manifest"]["files"]
        return _digests(files) == _digests(old_files)
    # A baseline only has one digest of all files, which depends on their names.
    renamed = {}
    for file, blob in files.items():
        is_named = file.startswith(f"{package}.")
        name = f"{previous}{file.removeprefix(package)}" if is_named else file
        renamed[name] = blob["digest"]
    return hash_json(renamed) == old["figures"]["digest"]


def _digests(files: Mapping[str, Any]) -> list[str]:
    return sorted(file["digest"] for file in files.values())
