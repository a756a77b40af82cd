"""Reports for people and for CI servers, rendered from records: pure functions, without torch.

Pages are Jinja's templates, with all values escaped: each is one self-contained HTML file, the
verdict and what failed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report import packages
from pipeline.report.charts.draw import draw
from pipeline.report.elements import MOST_ROWS, Json, ReportSection
from pipeline.report.excerpts import excerpts
from pipeline.report.junit import junit
from pipeline.report.markdown import markdown, markdown_summary
from pipeline.report.packages import Entry
from pipeline.report.sections import report_sections, run

__all__ = ["Entry", "render", "render_all"]


def render(report: Json, sources: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Render the reports of a package, by file name.

    Args:
        sources: texts of the files of the workspace that `excerpts.named_files` gives. Of others
            only the lines that the record quotes are shown.
    """
    page = _page(
        "package.html.j2",
        name=report["package"],
        ok=report["ok"],
        lead=packages.lead(report),
        about=packages.about(report),
        facts=packages.known_figures(report),
        sections=report_sections(report),
        excerpts=excerpts(report, sources or {}),
    )
    return {
        "junit.xml": junit([report]),
        "report.html": page,
        "report.md": markdown(report).encode(errors="replace"),
    }


def render_all(entries: Iterable[Entry], timeline: Json | None = None) -> dict[str, bytes]:
    """Render the reports over all packages, by file name.

    Args:
        timeline: of the last run that did something, as `write.read_timeline` gives it.
    """
    entries = packages.sort_entries(entries)
    failed = [entry for entry in entries if entry.failed]
    sections = [
        ReportSection("packages", "All packages", packages.table(entries)),
        run.section(timeline, {entry.package: entry.page for entry in entries}),
    ]
    page = _page(
        "index.html.j2",
        ok=not failed,
        verdict=packages.overall_verdict(entries),
        failures=[(entry.package, entry.page, entry.failures) for entry in failed],
        sections=[section for section in sections if section.parts],
        timeline=timeline,
    )
    reports = [entry.report for entry in entries if entry.report is not None and not entry.error]
    not_built = {entry.package: entry.error for entry in entries if entry.error}
    return {
        "index.html": page,
        "junit.xml": junit(reports, not_built),
        "summary.md": markdown_summary(entries).encode(errors="replace"),
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates", encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.globals |= {"draw": draw, "most_rows": MOST_ROWS}
    return environment


def _page(template: str, **parts: Any) -> bytes:
    """Render a template as UTF-8; surrogates, as names of files can hold, become question marks."""
    return _environment().get_template(template).render(**parts).encode(errors="replace")
