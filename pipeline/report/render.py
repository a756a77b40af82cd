"""Writes reports for people and CI servers; features render them from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.moments import call_all, find_functions, load
from pipeline.report.elements import Json
from pipeline.report.packages import Entry, sort_entries
from pipeline.report.quoted_files import read_sources
from pipeline.report.records import read_drops, read_fitting, read_manifest
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, write_atomically
from pipeline.store.workspace import Workspace


def render(
    report: Json,
    sources: Mapping[str, str | None] | None = None,
    drops: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, bytes]:
    """Render the reports of a package, by file name.

    Args:
        sources: contents of workspace files from `quoted_files.named_files`; None for a file that
            changed. Only the lines that the record quotes are shown.
        drops: methods that are delegated less than in the previous build, from `read_drops`.
    """
    rendered = _render_formats([report], {})
    for pages in call_all("package_pages", report, sources or {}, drops or {}):
        rendered |= pages
    return rendered


def _render_formats(
    reports: Sequence[Json], not_built: Mapping[str, str]
) -> dict[str, bytes]:
    """Render reports in the formats of features, by file name.

    Args:
        not_built: the errors of packages that could not be built, by package.
    """
    return {
        name: load(reference)(reports, not_built)
        for name, reference in find_functions("report_formats").items()
    }


def render_all(
    entries: Iterable[Entry],
    timeline: Json | None = None,
    provenance: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """Render the reports over all packages, by file name.

    Args:
        timeline: the content of `timeline.json` from the last run that did something.
        provenance: from a feature's `find_build_facts`.
    """
    entries = sort_entries(entries)
    reports = [
        entry.report
        for entry in entries
        if entry.report is not None and not entry.error
    ]
    not_built = {entry.package: entry.error for entry in entries if entry.error}
    rendered = _render_formats(reports, not_built)
    for pages in call_all("overview_pages", entries, timeline, provenance or {}):
        rendered |= pages
    return rendered


# Reading and writing in `build/`


def read_report(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """Read the record of the package in `build/`; return None if this build was not validated."""
    report = read_fitting(workspace.package(package) / REPORT)
    if report is None:
        return None
    files = (read_manifest(workspace, package) or {}).get("files", {})
    digests = {name: file["digest"] for name, file in files.items()}
    if digests and report.get("files", digests) != digests:
        return None
    return report


def render_package(root: Path, report: Json) -> dict[str, bytes]:
    """Render all reports of a package by file name, with source lines from files below `root`."""
    return render(report, read_sources(root, report))


def write_reports(workspace: Workspace, package: str) -> list[Path]:
    """Render the reports of a package again and return their paths; [] if it was not validated.

    Raises:
        OSError: a file can't be written.
    """
    report = read_report(workspace, package)
    if report is None:
        return []
    sources = read_sources(workspace.root, report)
    drops = read_drops(workspace, package)
    rendered = render(report, sources, drops)
    written = write_rendered(workspace, workspace.package(package), rendered)
    state = workspace.state(package)
    digests = state.get("validate", {}).get("files", {})
    rerenders = {
        name: hash_bytes(rendered[name]) for name in rendered if name in digests
    }
    if rerenders:
        digests |= rerenders  # or the next run would consider them edited
        workspace.write_state(package, state)
    return written


def write_rendered(
    workspace: Workspace, folder: Path, contents: Mapping[str, bytes]
) -> list[Path]:
    """Write rendered reports into a folder of `build/`; return their paths. Raises OSError."""
    for name, content in contents.items():
        write_atomically(folder / name, content, workspace.build)
    return [folder / name for name in contents]
