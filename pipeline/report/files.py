"""The files that a build leaves: their names, and how their records are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.store.workspace import Workspace

MANIFEST = "manifest.json"
CONTENTS = "contents.json"
REPORT = "report.json"


def read_manifest(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """None where there is none that can be read."""
    return read_record(workspace.package(package) / MANIFEST)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record in JSON; None where there is none that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
