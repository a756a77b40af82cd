"""Reports for people and for CI servers: rendered from records, and written to `build/`.

Pages are Jinja's templates, with all values escaped: each is one self-contained HTML file, the
verdict and what failed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.features.pages import heads as packages
from pipeline.features.pages import overview
from pipeline.features.pages.excerpts import excerpts, named_files
from pipeline.features.pages.heads import Entry
from pipeline.features.pages.markdown import markdown, markdown_summary
from pipeline.features.pages.sections import caches, report_sections, run
from pipeline.moments import find_functions, find_sections, load
from pipeline.report.elements import MOST_ROWS, WIDTH, Json, ReportSection
from pipeline.report.events import RUN, TIMELINE
from pipeline.report.formatting import NOTHING
from pipeline.report.provenance import find_provenance
from pipeline.report.records import read_drops, read_fitting, read_manifest
from pipeline.store.digest import hash_bytes
from pipeline.store.files import REPORT, read_record, write_atomically
from pipeline.store.forms import check_of
from pipeline.store.visible import visible
from pipeline.store.workspace import Workspace

_MOST_FAILURES = 5  # of a package on the page over all packages
_LARGEST_SOURCE = 1 << 22  # bytes; a page shows a few lines of it


def render(
    report: Json,
    sources: Mapping[str, str | None] | None = None,
    drops: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, bytes]:
    """Render the reports of a package, by file name.

    Args:
        sources: texts of the files of the workspace that `excerpts.named_files` gives, None for
            one that changed. Of these and of others only what the record quotes is shown.
        drops: what is delegated less than in the build before, as `read_drops` gives it.
    """
    sections = report_sections(report)
    if drops:
        sections = [overview.package_drops_section(drops), *sections]
    page = _page(
        "package.html.j2",
        name=report["package"],
        verdict=report["verdict"],
        kind=packages.outcome_kind(report["verdict"]),
        lead=packages.lead(report),
        about=packages.about(report),
        facts=packages.known_figures(report),
        sections=sections,
        excerpts=excerpts(report, sources or {}),
    )
    return {
        **_render_formats([report], {}),
        "report.html": page,
        "report.md": visible(markdown(report, sections)).encode(),
    }


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
        provenance: as `find_provenance` gives it.
    """
    entries = packages.sort_entries(entries)
    failed = [entry for entry in entries if entry.failed]
    word, kind = packages.overall_word(entries)
    pages = {entry.package: entry.page for entry in entries}
    ranked = [
        (0, overview.not_judged_section(entries)),
        (10, overview.not_run_section(entries)),
        (30, overview.drops_section(entries)),
        (40, ReportSection("packages", "All packages", packages.table(entries))),
        (60, overview.sums_section(entries)),
        (70, caches.section(timeline)),
        (80, run.section(timeline, pages)),
        (90, overview.provenance_section(provenance or {})),
    ]
    for brought in find_sections("overview_sections"):
        ranked.append((brought.rank, load(brought.make)(entries)))
    ranked.sort(key=lambda pair: pair[0])
    sections = [section for _, section in ranked]
    page = _page(
        "index.html.j2",
        word=word,
        kind=kind,
        verdict=packages.overall_verdict(entries),
        failures=[(entry.package, entry.page, entry.failures) for entry in failed],
        sections=[section for section in sections if section.parts],
        timeline=timeline,
        formats=find_functions("report_formats"),
        most_failures=_MOST_FAILURES,
    )
    reports = [
        entry.report
        for entry in entries
        if entry.report is not None and not entry.error
    ]
    not_built = {entry.package: entry.error for entry in entries if entry.error}
    return {
        "index.html": page,
        **_render_formats(reports, not_built),
        "summary.md": visible(markdown_summary(entries, sections)).encode(),
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(
            Path(__file__).parents[1] / "features/pages/templates", encoding="utf-8"
        ),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "chart_width": WIDTH,
        "most_rows": MOST_ROWS,
        "nothing": NOTHING,
    }
    return environment


def _page(template: str, **parts: Any) -> bytes:
    """Render a template as UTF-8, with what is hidden in names and messages made visible."""
    return visible(_environment().get_template(template).render(**parts)).encode()


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


def read_sources(root: Path, report: Json) -> dict[str, str | None]:
    """Read the files below `root` whose lines the reports of a package quote, by their names; None
    for one that is not what it was when the record was made, whose lines may have moved."""
    texts: dict[str, str | None] = {}
    for name, digest in named_files(report).items():
        path = root / name
        with suppress(OSError, UnicodeDecodeError):
            # And no link to another file.
            is_itself = path.resolve() == root.resolve() / name
            if is_itself and path.is_file() and path.stat().st_size <= _LARGEST_SOURCE:
                content = path.read_bytes()
                texts[name] = (
                    content.decode() if hash_bytes(content) == digest else None
                )
    return texts


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
    entries = [
        Entry(package, None, error)
        if (error := _build_error(package, actions))
        else Entry(
            package,
            read_report(workspace, package),
            drops=read_drops(workspace, package),
        )
        for package in packages
    ]
    provenance = find_provenance(workspace, [entry.package for entry in entries])
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
