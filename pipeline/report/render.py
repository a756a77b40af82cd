"""Reports for people and for CI servers: features render records; here they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.moments import call_all, find_functions, load
from pipeline.report.elements import Json
from pipeline.report.events import RUN, TIMELINE
from pipeline.report.packages import Entry, sort_entries
from pipeline.report.quoted_files import read_sources
from pipeline.report.records import read_drops, read_fitting, read_manifest
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, read_record, write_atomically
from pipeline.store.forms import check_of
from pipeline.store.workspace import Workspace


def render(
    report: Json,
    sources: Mapping[str, str | None] | None = None,
    drops: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, bytes]:
    """Render the reports of a package, by file name.

    Args:
        sources: texts of the files of the workspace that `quoted_files.named_files` gives, None
            for one that changed. Of these and of others only what the record quotes is shown.
        drops: what is delegated less than in the build before, as `read_drops` gives it.
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
    rendered = {}
    for name, reference in find_functions("report_formats").items():
        rendered[name] = load(reference)(reports, not_built)
    return rendered


def render_all(
    entries: Iterable[Entry],
    timeline: Json | None = None,
    provenance: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """Render the reports over all packages, by file name.

    Args:
        timeline: of the last run that did something, as `read_timeline` gives it.
        provenance: as `find_build_facts` of a feature gives it.
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


# What is in `build/`


# The fields of `run.json` that pages read.
_ACTION = {"kind": str, "package": (str, None), "outcome": str, "error": str}
_are_actions = check_of([_ACTION], open_fields=True)


def read_run(workspace: Workspace) -> list[dict[str, Any]]:
    """Read the actions of the last run; none where `run.json` can't be read."""
    actions: Any = (read_record(workspace.build / RUN) or {}).get("actions")
    if _are_actions(actions):
        return actions
    return []


def read_timeline(workspace: Workspace) -> dict[str, Any] | None:
    """Read the timeline of the last run that did something; None where it can't be read."""
    record = read_record(workspace.build / TIMELINE) or {}
    if isinstance(record.get("traceEvents"), list):
        return record
    return None


def read_report(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """Read the record of the package that is in `build/` now; None where that was not validated."""
    report = read_fitting(workspace.package(package) / REPORT)
    if report is None:
        return None
    files = (read_manifest(workspace, package) or {}).get("files", {})
    digests = {name: file["digest"] for name, file in files.items()}
    if digests and report.get("files", digests) != digests:
        return None
    return report


def render_package(root: Path, report: Json) -> dict[str, bytes]:
    """Render all reports of a package by file name, with lines of the sources below `root`."""
    return render(report, read_sources(root, report))


def write_reports(workspace: Workspace, package: str) -> list[Path]:
    """Render the reports of a package again; nothing where it was not validated.

    Raises:
        OSError: a file can't be written.
    """
    report = read_report(workspace, package)
    if report is None:
        return []
    sources = read_sources(workspace.root, report)
    drops = read_drops(workspace, package)
    rendered = render(report, sources, drops)
    written = _write(workspace, workspace.package(package), rendered)
    state = workspace.state(package)
    digests = state.get("validate", {}).get("files", {})
    rerenders = {
        name: hash_bytes(rendered[name]) for name in rendered if name in digests
    }
    if rerenders:
        digests |= rerenders  # or the next run would take them for edited
        workspace.write_state(package, state)
    return written


def write_overview(workspace: Workspace, packages: Iterable[str]) -> list[Path]:
    """Write the reports over these packages.

    Raises:
        OSError: a file can't be written.
    """
    actions = read_run(workspace)
    packages = list(packages)
    histories: dict[str, Any] = {}
    for packages_history in call_all("find_histories", workspace, packages):
        histories |= packages_history
    entries = [
        Entry(package, None, error)
        if (error := _build_error(package, actions))
        else Entry(
            package,
            read_report(workspace, package),
            drops=read_drops(workspace, package),
            history=histories.get(package, ()),
        )
        for package in packages
    ]
    provenance: dict[str, str] = {}
    for facts in call_all("find_build_facts", workspace, packages):
        provenance |= facts
    rendered = render_all(entries, read_timeline(workspace), provenance)
    return _write(workspace, workspace.build, rendered)


def _write(
    workspace: Workspace, folder: Path, contents: Mapping[str, bytes]
) -> list[Path]:
    for name, content in contents.items():
        write_atomically(folder / name, content, workspace.build)
    return [folder / name for name in contents]


def _build_error(package: str, actions: Sequence[Json]) -> str:
    """Return why the last run could not build a package; empty where it did, or did not try."""
    package_actions = [action for action in actions if action["package"] == package]
    bad = [
        action
        for action in package_actions
        if action["outcome"] in ("failed", "not-run")
    ]
    link = next(
        (action for action in bad if action["kind"] == "link"),
        None,
    )
    if link is None:
        return ""
    models = {action.get("model") for action in package_actions} - {"", None}
    exports = [a for a in actions if a["kind"] == "export" and a.get("model") in models]
    failed = (
        a
        for a in [*exports, *bad]
        if a["outcome"] == "failed" and a["kind"] != "validate"
    )
    first = next(failed, None)
    if first is None:
        return link["reason"]
    of = first["method"] or (first["model"] if first["kind"] == "export" else "")
    if of:
        return f"{first['kind']} {of}: {first['error']}"
    return first["error"]
