"""Keeps the latest profile of each method in the report of its package, and shows it there.

A validation rewrites the report, with only what its key determines. Profiles aren't part of it,
since they depend on this machine and this moment. They are kept in `build/.logs` instead, and are
put back after a run as long as the package has the same files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.features.native.profile_rows import ProfileRow
from pipeline.report.cells import code, figure
from pipeline.report.elements import Cell, DataTable, ReportSection
from pipeline.report.events import Event
from pipeline.report.formatting import milliseconds
from pipeline.report.records import read_manifest
from pipeline.report.render import read_report, write_reports
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, make_folder, record_bytes, write_atomically
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
_TITLE = "Profile"
_LEAD = (
    "How the time of a call was spent on the device on which `doit profile` ran exactly these "
    "bytes. A row is an operator or an instruction of a delegate. Times on emulated processors "
    "don't predict those of real ones."
)
_MOST_ROWS = 100  # limit of the record; the trace in build/ has all rows
_FOLDER, _SUFFIX = "profile", ".profile.json"
_FIELDS = {"device", "repeats", "ms", "rows"}
_BRIEF = 10  # rows of the table on a Markdown page


def describe_profile(
    device: str, repeats: int, time: float, profile_rows: Sequence[ProfileRow]
) -> dict[str, Any]:
    """Return the record of a profile.

    Times are in milliseconds, and shares of the whole method's time from 0 to 1. `modules` has the
    time by the innermost module that contains everything that an instruction computes.
    """
    modules: dict[str, float] = {}
    for row in profile_rows:
        modules[row.module] = modules.get(row.module, 0.0) + row.milliseconds
    rows = []
    for row in profile_rows[:_MOST_ROWS]:
        facts = {
            "name": row.name,
            "backend": row.backend,
            "where": row.where,
            "calls": row.calls,
            "ms": round(row.milliseconds, 6),
            "share": round(row.share, 4),
        }
        rows.append(facts)
    return {
        "device": device,
        "repeats": repeats,
        "ms": round(time, 6),
        "rows": rows,
        "modules": {module: round(ms, 6) for module, ms in modules.items()},
    }


def keep_profile(
    workspace: Workspace, package: str, method: str, profile: Mapping[str, Any]
) -> bool:
    """Keep a profile, add it to the report of the package in build/, and render the report's pages.

    Returns:
        Whether there is such a report. There is none if the package was not validated, or if its
        files have changed since.

    Raises:
        OSError: a file can't be written.
    """
    files = _list_files(workspace, package)
    folder = workspace.logs / package / _FOLDER
    make_folder(folder, workspace.build)
    content = record_bytes({"files": files, "profile": dict(profile)})
    write_atomically(folder / f"{method}{_SUFFIX}", content, workspace.build)
    return _add_to_report(workspace, package, {method: dict(profile)})


def restore_profiles(
    workspace: Workspace, events: Sequence[Event], caches: Json
) -> None:
    """Put profiles back into the reports of the packages that a run validated.

    Raises OSError if a file can't be written.
    """
    for package in sorted({str(e.package) for e in events if e.kind == "validate"}):
        report = read_report(workspace, package) or {}
        methods = {method["method"] for method in report.get("methods", ())}
        files = _list_files(workspace, package)
        profiles = {}
        for path in sorted((workspace.logs / package / _FOLDER).glob(f"*{_SUFFIX}")):
            method = path.name.removesuffix(_SUFFIX)
            profile = _read_profile(path, files)
            if profile and method in methods - report.get("profiles", {}).keys():
                profiles[method] = profile
        if profiles:
            _add_to_report(workspace, package, profiles)


def _list_files(workspace: Workspace, package: str) -> dict[str, str]:
    """Return the digests of the files of the package in build/, keyed by name."""
    files = (read_manifest(workspace, package) or {}).get("files", {})
    return {name: file["digest"] for name, file in files.items()}


def _read_profile(path: Path, files: Json) -> dict[str, Any] | None:
    """Return a kept profile, or None if it belongs to other files or can't be read."""
    try:
        record = json.loads(path.read_bytes())
        profile: dict[str, Any] = record["profile"]
        is_current = bool(files) and record["files"] == files
        return profile if is_current and profile.keys() >= _FIELDS else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _add_to_report(
    workspace: Workspace, package: str, new_profiles: dict[str, dict[str, Any]]
) -> bool:
    """Add profiles, keyed by method, to the report of a package, and render its pages.

    Returns False if there is no report. Raises OSError if a file can't be written.
    """
    report = read_report(workspace, package)
    if report is None:
        return False
    profiles = report.get("profiles", {}) | new_profiles
    content = record_bytes({**report, "profiles": profiles})
    write_atomically(workspace.package(package) / REPORT, content, workspace.build)
    state = workspace.state(package)
    digests = state.get("validate", {}).get("files", {})
    if REPORT in digests:  # or the next run would take the report for edited
        digests[REPORT] = hash_bytes(content)
        workspace.write_state(package, state)
    write_reports(workspace, package)
    return True


def section(report: Json) -> ReportSection:
    """Return one table per profiled method, longest rows first; empty if there is none."""
    tables = []
    for method, profile in sorted(report.get("profiles", {}).items()):
        time = milliseconds(profile["ms"])
        title = (
            f"{method} on {profile['device']}: {time} a call, the median of "
            f"{profile['repeats']}"
        )
        rows = [_make_row(row) for row in profile["rows"]]
        tables.append(DataTable(f"profile-{method}", title, rows, _BRIEF))
    if not tables:
        return ReportSection("profile", _TITLE)
    return ReportSection("profile", _TITLE, _LEAD, *tables)


def _make_row(row: Json) -> dict[str, Cell | str]:
    share = Cell(f"{row['share']:.1%}", row["share"], bar=min(1.0, row["share"]))
    return {
        "operator": code(row["name"]),
        "backend": row["backend"],
        "share": share,
        "time": figure(row["ms"], milliseconds),
        "calls": figure(row["calls"]),
        "source line": code(row["where"]),
    }
