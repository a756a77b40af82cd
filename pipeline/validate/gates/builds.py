"""Builds as they are compared: the records of a package, of `build/` or of elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.report.files import CONTENTS, MANIFEST, REPORT, read_record
from pipeline.validate.gates.figures import Figures, figures_of

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Build:
    """`figures` are all that is known of a build of which only a baseline is left; then `manifest`
    is None, and `partial` says that it names but the largest tensors."""

    figures: Figures
    manifest: Json | None = None

    @property
    def partial(self) -> bool:
        return self.manifest is None


def build_of(manifest: Json, contents: Json | None, report: Json | None) -> Build:
    """The report counts only if it is of the files of the manifest."""
    files = {name: file["digest"] for name, file in manifest["files"].items()}
    proved = report if report is not None and report.get("files") == files else None
    return Build(figures_of(manifest, contents, proved), manifest)


def build_at(manifest: Path) -> Build | None:
    """That of a manifest, with what stands beside it. None where there is none that can be read."""
    told = read_record(manifest)
    if told is None or not {"files", "methods", "package"} <= told.keys():
        return None
    beside = (read_record(manifest.with_name(name)) for name in (CONTENTS, REPORT))
    return build_of(told, *beside)


def build_in(folder: Path) -> Build | None:
    """That of a package's folder."""
    return build_at(folder / MANIFEST)
