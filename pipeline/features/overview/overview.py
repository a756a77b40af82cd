"""Collects, renders and writes the reports over all packages in `build/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.moments import call_all
from pipeline.report.elements import Json
from pipeline.report.events import RUN, TIMELINE
from pipeline.report.failures import describe_failed
from pipeline.report.packages import Entry
from pipeline.report.records import read_drops
from pipeline.report.render import (
    read_report,
    render_all,
    write_rendered,
    write_reports,
)
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, read_record, record_bytes, write_atomically
from pipeline.store.forms import check_of
from pipeline.store.visible import one_line
from pipeline.store.workspace import Workspace

# The fields of `run.json` that pages read.
_ACTION = {"kind": str, "package": (str, None), "outcome": str, "error": str}
_are_actions = check_of([_ACTION], open_fields=True)


def read_run(workspace: Workspace) -> list[dict[str, Any]]:
    """Return the actions of the last run, or an empty list if `run.json` can't be read."""
    actions: Any = (read_record(workspace.build / RUN) or {}).get("actions")
    if _are_actions(actions):
        return actions
    return []


def read_timeline(workspace: Workspace) -> dict[str, Any] | None:
    """Return the timeline of the last run that did any work, or None if it can't be read."""
    record = read_record(workspace.build / TIMELINE) or {}
    if isinstance(record.get("traceEvents"), list):
        return record
    return None


def write_overview(workspace: Workspace, packages: Iterable[str]) -> list[Path]:
    """Write the reports over these packages and return the paths written.

    Raises:
        OSError: a file can't be written.
    """
    actions = read_run(workspace)
    packages = list(packages)
    histories: dict[str, Any] = {}
    for packages_history in call_all("find_histories", workspace, packages):
        histories |= packages_history
    entries: list[Entry] = []
    for package in packages:
        if error := _build_error(package, actions):
            entries.append(Entry(package, None, error))
            continue
        report = read_report(workspace, package)
        if error := _validation_error(package, actions, report):
            if report is not None and not _is_newer_than_run(workspace, package):
                _mark_failed(workspace, package, report, error)
            entries.append(Entry(package, None, error))
            continue
        drops = read_drops(workspace, package)
        history = histories.get(package, ())
        entries.append(Entry(package, report, drops=drops, history=history))
    provenance: dict[str, str] = {}
    for facts in call_all("find_build_facts", workspace, packages):
        provenance |= facts
    rendered = render_all(entries, read_timeline(workspace), provenance)
    return write_rendered(workspace, workspace.build, rendered)


def _validation_error(
    package: str, actions: Sequence[Json], report: Json | None
) -> str:
    """Return the error of the last run's validation, or "" if its report describes it."""
    for action in actions:
        names = action["kind"], action["package"], action["outcome"]
        if names != ("validate", package, "failed"):
            continue
        reported = ""
        if report is not None and report["failures"]:
            reported = one_line(describe_failed(report, package))
        if not reported or not action["error"].startswith(reported):
            return f"validate {package}: {action['error']}"
    return ""


def _is_newer_than_run(workspace: Workspace, package: str) -> bool:
    """Return whether a package's report was written after the last run.

    Commands such as `doit sensitivity` validate packages, too, but aren't recorded as runs.
    """
    report = workspace.package(package) / REPORT
    return report.stat().st_mtime_ns > (workspace.build / RUN).stat().st_mtime_ns


def _mark_failed(
    workspace: Workspace, package: str, report: dict[str, Any], error: str
) -> None:
    """Make the reports of an earlier validation say that the last one failed, and why.

    They keep their figures, which `doit baseline` needs to replace a baseline that has mistakes.
    """
    report |= {"ok": False, "verdict": "failed", "failures": [error], "codes": [""]}
    content = record_bytes(report)
    write_atomically(workspace.package(package) / REPORT, content, workspace.build)
    state = workspace.state(package)
    if record := state.get("validate"):
        record |= {"ok": False, "verdict": "failed"}  # so that it is repeated
        record["files"][REPORT] = hash_bytes(content)
        workspace.write_state(package, state)
    write_reports(workspace, package)


def _build_error(package: str, actions: Sequence[Json]) -> str:
    """Return why the last run failed to build a package, or "" if it succeeded or wasn't tried."""
    package_actions = [action for action in actions if action["package"] == package]
    bad = [
        action
        for action in package_actions
        if action["outcome"] in ("failed", "not-run")
    ]
    link = next((action for action in bad if action["kind"] == "link"), None)
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
