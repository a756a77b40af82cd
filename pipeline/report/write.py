"""Writing reports from what is in `build/`: over all packages, and of each package again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.report.elements import Json
from pipeline.report.events import RUN, TIMELINE
from pipeline.report.excerpts import named_files
from pipeline.report.records import read_manifest
from pipeline.report.render import Entry, render, render_all
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, read_record, write_atomically
from pipeline.store.workspace import Workspace

_LARGEST_SOURCE = 1 << 22  # bytes; a page shows a few lines of it


def read_run(workspace: Workspace) -> list[dict[str, Any]]:
    """Read the actions of the last run; none where `run.json` can't be read."""
    return (read_record(workspace.build / RUN) or {}).get("actions", [])


def read_timeline(workspace: Workspace) -> dict[str, Any] | None:
    """Read the timeline of the last run that did something; None where it can't be read."""
    found = read_record(workspace.build / TIMELINE) or {}
    return found if isinstance(found.get("traceEvents"), list) else None


def read_report(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """Read the record of the package that is in `build/` now; None where that was not validated."""
    report = read_record(workspace.package(package) / REPORT)
    if report is None or "methods" not in report:
        return None
    files = (read_manifest(workspace, package) or {}).get("files", {})
    digests = {name: file["digest"] for name, file in files.items()}
    return None if digests and report.get("files", digests) != digests else report


def render_package(root: Path, report: Json) -> dict[str, bytes]:
    """Render all reports of a package by file name, with lines of the sources below `root`."""
    texts = {}
    for name in named_files(report):
        path = root / name
        with suppress(OSError, UnicodeDecodeError):
            inside = path.resolve().is_relative_to(root.resolve())
            if inside and path.stat().st_size <= _LARGEST_SOURCE:
                texts[name] = path.read_text(encoding="utf-8")
    return render(report, texts)


def write_reports(workspace: Workspace, package: str) -> list[Path]:
    """Render the reports of a package again; nothing where it was not validated.

    Raises:
        OSError: a file can't be written.
    """
    report = read_report(workspace, package)
    if report is None:
        return []
    rendered = render_package(workspace.root, report)
    written = _write(workspace.package(package), rendered)
    state = workspace.state(package)
    digests = state.get("validate", {}).get("files", {})
    if again := {name: hash_bytes(rendered[name]) for name in rendered if name in digests}:
        digests |= again  # or the next run would take them for edited
        workspace.write_state(package, state)
    return written


def write_overview(workspace: Workspace, packages: Iterable[str]) -> list[Path]:
    """Write the reports over these packages.

    Raises:
        OSError: a file can't be written.
    """
    actions = read_run(workspace)
    entries = [
        Entry(package, None, error)
        if (error := _build_error(package, actions))
        else Entry(package, read_report(workspace, package))
        for package in packages
    ]
    return _write(workspace.build, render_all(entries, read_timeline(workspace)))


def _write(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def _build_error(package: str, actions: Sequence[Json]) -> str:
    """Return why the last run could not build a package; empty where it did, or did not try."""
    own = [action for action in actions if action["package"] == package]
    bad = [action for action in own if action["outcome"] in ("failed", "not-run")]
    link = next((action for action in bad if action["kind"] == "link"), None)
    if link is None:
        return ""
    failed = (a for a in bad if a["outcome"] == "failed" and a["kind"] != "validate")
    if (first := next(failed, None)) is None:
        return link["reason"]
    where = f"{first['kind']} {first['method']}: " if first["method"] else ""
    return where + first["error"]
