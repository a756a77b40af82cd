"""Reports from what is in `build/`: those over all packages, at the end of a run, and those of each
package again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.report.files import REPORT, read_manifest
from pipeline.report.markdown import markdown
from pipeline.report.render import Entry, files, render, render_all
from pipeline.report.timeline import read_timeline
from pipeline.store.digest import of_bytes
from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]

_LARGEST_SOURCE = 1 << 22  # bytes; a page shows a few lines of it


def read_report(workspace: Workspace, package: str) -> dict[str, Any] | None:
    """The record of the package that is in `build/` now; None where that was not validated."""
    folder = workspace.package(package)
    manifest = read_manifest(workspace, package) or {}
    report = _read(folder / REPORT)
    there = {name: file["digest"] for name, file in manifest.get("files", {}).items()}
    if report is None or (there and report.get("files", there) != there):
        return None
    return report


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and "methods" in record else None


def sources_of(root: Path, report: Json) -> dict[str, str]:
    """The texts of the files that a report shows lines of, as far as they can be read."""
    texts = {}
    for name in files(report):
        path = root / name
        with suppress(OSError, UnicodeDecodeError):
            inside = path.resolve().is_relative_to(root.resolve())
            if inside and path.stat().st_size <= _LARGEST_SOURCE:
                texts[name] = path.read_text(encoding="utf-8")
    return texts


def render_package(root: Path, report: Json) -> dict[str, bytes]:
    """All reports of a package by file name, but for the record itself."""
    text = {"report.md": markdown(report, report).encode(errors="replace")}
    return text | render(report, sources_of(root, report))


def write_reports(workspace: Workspace, package: str) -> list[Path]:
    """Renders the reports of a package again; empty where it was not validated. Raises OSError."""
    report = read_report(workspace, package)
    if report is None:
        return []
    folder = workspace.package(package)
    rendered = render_package(workspace.root, report)
    written = [_write(folder / name, content) for name, content in rendered.items()]
    state = workspace.state(package)
    made = state.get("validate", {}).get("files", {})
    if again := {n: of_bytes(rendered[n]) for n in rendered if n in made}:
        made |= again  # or the next run would take them for edited
        workspace.write_state(package, state)
    return written


def write_overview(workspace: Workspace, packages: Iterable[str]) -> list[Path]:
    """Writes the reports over these packages. Raises OSError."""
    actions = _last_run(workspace)
    entries = [
        Entry(package, None, error)
        if (error := _error(package, actions))
        else Entry(package, read_report(workspace, package))
        for package in packages
    ]
    rendered = render_all(entries, read_timeline(workspace))
    return [_write(workspace.build / name, content) for name, content in rendered.items()]


def _write(path: Path, content: bytes) -> Path:
    write_atomically(path, content)
    return path


def _last_run(workspace: Workspace) -> Sequence[Json]:
    try:
        return json.loads((workspace.build / "run.json").read_bytes())["actions"]
    except (OSError, ValueError, KeyError):
        return []


def _error(package: str, actions: Iterable[Json]) -> str:
    """Why the last run could not build a package; empty where it did, or did not try."""
    own = [action for action in actions if action["package"] == package]
    return next(_errors(own), "") if any(_unlinked(action) for action in own) else ""


def _unlinked(action: Json) -> bool:
    return action["kind"] == "link" and action["outcome"] in ("failed", "not-run")


def _errors(actions: Sequence[Json]) -> Iterator[str]:
    """The errors of the actions that failed, the first cause first; then what was not run."""
    for action in actions:
        if action["outcome"] == "failed" and action["kind"] != "validate":
            yield (
                f"{action['kind']} {action['method']}: {action['error']}"
                if action["method"]
                else action["error"]
            )
    yield from (action["reason"] for action in actions if _unlinked(action))
