"""Builds as they are compared: the records of a package in `build/` or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.report.records import read_record
from pipeline.store.files import CONTENTS, REPORT
from pipeline.validate.gates.figures import Figures, make_figures

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Build:
    """A build; `manifest` is None for one of which only a baseline is left."""

    figures: Figures
    manifest: Json | None = None

    @property
    def partial(self) -> bool:
        """Return whether it names only the largest tensors, as a baseline does."""
        return self.manifest is None


def make_build(manifest: Json, contents: Json | None, report: Json | None) -> Build:
    """Make a build of its records; the report counts only if it is of the manifest's files."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    validation = report if report is not None and report.get("files") == files else None
    return Build(make_figures(manifest, contents, validation), manifest)


def read_build(manifest: Path) -> Build | None:
    """Read the build of a manifest and the records beside it; None where it can't be read."""
    record = read_record(manifest)
    if record is None or not {"files", "methods", "package"} <= record.keys():
        return None
    beside = (read_record(manifest.with_name(name)) for name in (CONTENTS, REPORT))
    return make_build(record, *beside)
