"""Renders pages from records.

The pages are Jinja templates with all values escaped. Each is one self-contained HTML file that
opens with the verdict and the failures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipeline.features.pages import heads, overview
from pipeline.features.pages.codes import add_code, kind_of
from pipeline.features.pages.excerpts import excerpts
from pipeline.features.pages.markdown import markdown, markdown_summary
from pipeline.features.pages.method_list import filter_words, list_methods
from pipeline.features.pages.scores import list_answers, list_scores
from pipeline.features.pages.sections import caches, find_sections, report_sections, run
from pipeline.moments import find_functions, load
from pipeline.report.elements import (
    MOST_ROWS,
    DataTable,
    Json,
    ReportSection,
)
from pipeline.report.formatting import NOTHING
from pipeline.report.packages import Entry
from pipeline.store.visible import visible

_QUOTED = re.compile(r"`([^`]+)`")
# Matches neither the decimal point in 5.25 nor the sign in (-5.
_MARKS = re.compile(r"((?<![\s(\[])[_./:\-]*(?:[_/:\-]|\.(?!\d)))(?=\w)")
_UNITS = re.compile(r"(?<=\d) (?=(?:ms|s|[kMG]?B|dB|%)(?!\w))")
_MANY_METHODS, _MANY_ROWS = 12, 24  # above these, tables of a package are folded
_MOST_FAILURES = 5  # per package, on the page over all packages


def render_package(
    report: Json,
    sources: Mapping[str, str | None],
    drops: Mapping[str, Sequence[float]],
) -> dict[str, bytes]:
    """Render the pages of a package, by file name."""
    sections = report_sections(report)
    if drops:
        sections = [overview.package_drops_section(drops), *sections]
    methods = list_methods(report)
    page = _page(
        "package.html.j2",
        methods=methods,
        filters=filter_words(methods),
        name=report["package"],
        verdict=report["verdict"],
        kind=heads.outcome_kind(report["verdict"]),
        lead=heads.lead(report),
        about=heads.about(report),
        scores=list_scores(report),
        answers=list_answers(report),
        sections=_fold_tables(report, sections),
        excerpts=excerpts(report, sources),
    )
    return {
        "report.html": page,
        "report.md": visible(markdown(report, sections)).encode(),
    }


def _fold_tables(
    report: Json, sections: Sequence[ReportSection]
) -> Sequence[ReportSection]:
    """Fold the long tables of a package with many methods, except the table of failures.

    The list of methods already has a row for each.
    """
    if len(report["methods"]) <= _MANY_METHODS:
        return sections
    shorter = []
    for section in sections:
        parts = [_fold_long(part) for part in section.parts]
        shorter.append(ReportSection(section.name, section.title, *parts))
    return shorter


def _fold_long(part: Any) -> Any:
    is_long = isinstance(part, DataTable) and len(part.rows) > _MANY_ROWS
    if is_long and part.name != "failed":
        return replace(part, folded=True)
    return part


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
    for rank, function in find_sections("overview_sections"):
        ranked.append((rank, load(function)(entries)))
    ranked.sort(key=lambda pair: pair[0])
    sections = [section for _, section in ranked]
    page = _page(
        "index.html.j2",
        word=word,
        kind=kind,
        verdict=heads.overall_verdict(entries),
        failures=[
            (entry.package, entry.page, _list_failures(entry)) for entry in failed
        ],
        sections=[section for section in sections if section.parts],
        timeline=timeline,
        formats=find_functions("report_formats"),
        most_failures=_MOST_FAILURES,
    )
    return {
        "index.html": page,
        "summary.md": visible(markdown_summary(entries, sections)).encode(),
    }


def _list_failures(entry: Entry) -> list[str]:
    """Return the failures of a package, each with its code."""
    kind = kind_of(entry.error) or "validate"
    return [add_code(failure, kind) for failure in entry.failures]


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
    environment.filters |= {"breakable": breakable, "with_code": with_code}
    environment.globals |= {"most_rows": MOST_ROWS, "nothing": NOTHING}
    return environment


def breakable(text: str) -> Markup:
    """Return a string as HTML that breaks lines only at spaces and after punctuation within names.

    A no-break space keeps a figure on the same line as its unit.
    """
    marked = _MARKS.sub(r"\1<wbr>", str(escape(text)))
    return Markup(_UNITS.sub("\N{NO-BREAK SPACE}", marked))


def with_code(sentence: str) -> Markup:
    """Return a sentence as HTML, with text in backticks as code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(sentence))))


def _page(template: str, **parts: Any) -> bytes:
    """Render a template as UTF-8, with invisible characters in names and messages made visible."""
    return visible(_environment().get_template(template).render(**parts)).encode()
