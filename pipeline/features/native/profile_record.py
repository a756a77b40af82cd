"""Keeps the latest profile of each method in a package's report, and shows it there.

A validation writes the report anew, without the profiles of other bytes or limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.features.native.profile_rows import ProfileRow
from pipeline.report.cells import code, figure
from pipeline.report.elements import Cell, DataTable, ReportSection
from pipeline.report.formatting import milliseconds
from pipeline.report.render import read_report, write_reports
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, record_bytes, write_atomically
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
_TITLE = "Profile"
_LEAD = (
    "Where the time of a call went on the device that `doit profile` ran these very bytes on. A "
    "row is an operator or an instruction of a delegate. Times of emulated processors say nothing "
    "of real ones."
)
_MOST_ROWS = 100  # that the record keeps; the trace in build/ has all
_BRIEF = 10  # of a page in Markdown


def describe_profile(
    device: str, repeats: int, time: float, profile_rows: Sequence[ProfileRow]
) -> dict[str, Any]:
    """Return the record of a profile: times in milliseconds, shares of the whole method from 0 to
    1."""
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
    return {"device": device, "repeats": repeats, "ms": round(time, 6), "rows": rows}


def keep_profile(
    workspace: Workspace, package: str, method: str, profile: Mapping[str, Any]
) -> bool:
    """Put a profile into the report of the package that is in build/ now, and render its pages.

    Returns:
        Whether there is such a report: none of a package that was not validated, or whose files
        are others by now.

    Raises:
        OSError: a file can't be written.
    """
    report = read_report(workspace, package)
    if report is None:
        return False
    profiles = {**report.get("profiles", {}), method: dict(profile)}
    content = record_bytes({**report, "profiles": profiles})
    write_atomically(workspace.package(package) / REPORT, content, workspace.build)
    state = workspace.state(package)
    digests = state.get("validate", {}).get("files", {})
    if REPORT in digests:  # or the next run would take it for edited
        digests[REPORT] = hash_bytes(content)
        workspace.write_state(package, state)
    write_reports(workspace, package)
    return True


def section(report: Json) -> ReportSection:
    """Return a table of each profiled method, sorted by time; empty where there is none."""
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
