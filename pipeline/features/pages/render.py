"""Renders pages from records.

They are Jinja's templates, with all values escaped: each is one self-contained HTML file, the
verdict and what failed first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.features.pages import heads, overview
from pipeline.features.pages.excerpts import excerpts
from pipeline.features.pages.markdown import markdown, markdown_summary
from pipeline.features.pages.sections import caches, report_sections, run
from pipeline.moments import find_functions, find_sections, load
from pipeline.report.elements import MOST_ROWS, WIDTH, Json, ReportSection
from pipeline.report.formatting import NOTHING
from pipeline.report.packages import Entry
from pipeline.store.visible import visible

_MOST_FAILURES = 5  # of a package on the page over all packages


def render_package(
    report: Json,
    sources: Mapping[str, str | None],
    drops: Mapping[str, Sequence[float]],
) -> dict[str, bytes]:
    """Render the pages of a package, by file name."""
    sections = report_sections(report)
    if drops:
        sections = [overview.package_drops_section(drops), *sections]
    page = _page(
        "package.html.j2",
        name=report["package"],
        verdict=report["verdict"],
        kind=heads.outcome_kind(report["verdict"]),
        lead=heads.lead(report),
        about=heads.about(report),
        facts=heads.known_figures(report),
        sections=sections,
        excerpts=excerpts(report, sources),
    )
    return {
        "report.html": page,
        "report.md": visible(markdown(report, sections)).encode(),
    }


def render_overview(
    entries: Sequence[Entry], timeline: Json | None, provenance: Mapping[str, str]
) -> dict[str, bytes]:
    """Render the pages over all packages, by file name."""
    failed = [entry for entry in entries if entry.failed]
    word, kind = heads.overall_word(entries)
    pages = {entry.package: entry.page for entry in entries}
    ranked = [
        (0, overview.not_judged_section(entries)),
        (10, overview.not_run_section(entries)),
        (30, overview.drops_section(entries)),
        (40, ReportSection("packages", "All packages", heads.table(entries))),
        (60, overview.sums_section(entries)),
        (70, caches.section(timeline)),
        (80, run.section(timeline, pages)),
        (90, overview.provenance_section(provenance)),
    ]
    for brought in find_sections("overview_sections"):
        ranked.append((brought.rank, load(brought.make)(entries)))
    ranked.sort(key=lambda pair: pair[0])
    sections = [section for _, section in ranked]
    page = _page(
        "index.html.j2",
        word=word,
        kind=kind,
        verdict=heads.overall_verdict(entries),
        failures=[(entry.package, entry.page, entry.failures) for entry in failed],
        sections=[section for section in sections if section.parts],
        timeline=timeline,
        formats=find_functions("report_formats"),
        most_failures=_MOST_FAILURES,
    )
    return {
        "index.html": page,
        "summary.md": visible(markdown_summary(entries, sections)).encode(),
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
    environment.globals |= {
        "chart_width": WIDTH,
        "most_rows": MOST_ROWS,
        "nothing": NOTHING,
    }
    return environment


def _page(template: str, **parts: Any) -> bytes:
    """Render a template as UTF-8, with what is hidden in names and messages made visible."""
    return visible(_environment().get_template(template).render(**parts)).encode()
