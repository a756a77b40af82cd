"""The revision, versions, host and time of the build in `build/`, for the page over all packages.

They appear on no package's own page, because its bytes must not depend on them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from pipeline.report.records import read_manifest
from pipeline.store.revision import find_revision
from pipeline.store.workspace import Workspace

_NAMES = {"torch": "torch", "executorch": "ExecuTorch", "python": "Python"}


def find_provenance(workspace: Workspace, packages: Iterable[str]) -> dict[str, str]:
    """Return the known facts by name; the versions come from the packages' manifests."""
    manifests = [
        m
        for package in packages
        if (m := read_manifest(workspace, package)) is not None
    ]
    facts = {"revision": _revision(workspace)}
    for name, title in _NAMES.items():
        versions = {manifest["toolchain"].get(name, "") for manifest in manifests} - {
            ""
        }
        facts[title] = ", ".join(sorted(versions))
    try:
        facts["pte-pipeline"] = version("pte-pipeline")
    except PackageNotFoundError:  # imported from a checkout
        facts["pte-pipeline"] = "not installed"
    facts["host"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    facts["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {name: value for name, value in facts.items() if value}


def _revision(workspace: Workspace) -> str:
    """Return the checked-out commit, and whether files differ from it; "" without a commit."""
    revision = find_revision(workspace.root)
    if revision is None:
        return ""
    if revision.changed:
        return f"{revision.commit[:12]}, with changes"
    return revision.commit[:12]
