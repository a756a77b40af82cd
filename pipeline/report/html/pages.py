"""The pages: of one package, and over all packages. Jinja's templates, with all values escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report.charts.draw import draw
from pipeline.report.elements import MOST_ROWS, Json, ReportSection
from pipeline.report.entries import Entry, overall_verdict, sort_entries
from pipeline.report.html.excerpts import excerpts
from pipeline.report.sections import packages, report_sections, run, summary


def package_page(report: Json, sources: Mapping[str, str]) -> bytes:
    """Render the page of a package as one self-contained HTML file, the verdict and failures first.

    Args:
        sources: texts of the files that `excerpts.named_files` gives, by their paths in the
            workspace.
    """
    return _render(
        "package.html.j2",
        name=report["package"],
        ok=report["ok"],
        lead=summary.lead(report),
        about=summary.about(report),
        facts=summary.known_figures(report),
        sections=report_sections(report),
        excerpts=excerpts(report, sources),
    )


def index_page(entries: Iterable[Entry], timeline: Json | None = None) -> bytes:
    """Render the page over all packages as one self-contained HTML file, failed packages first.

    Args:
        timeline: of the last run that did something, as `events.read_timeline` gives it.
    """
    entries = sort_entries(entries)
    failed = [entry for entry in entries if entry.failed]
    sections = [
        ReportSection("packages", "All packages", packages.packages_table(entries)),
        run.section(timeline, entries),
    ]
    return _render(
        "index.html.j2",
        ok=not failed,
        verdict=overall_verdict(entries),
        failures=[(entry.package, packages.page_href(entry), entry.failures) for entry in failed],
        sections=[section for section in sections if section.parts],
        timeline=timeline,
    )


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


def _render(template: str, **parts: Any) -> bytes:
    """Render a template as UTF-8; surrogates, as names of files can hold, become question marks."""
    return _environment().get_template(template).render(**parts).encode(errors="replace")
