"""Reports for people and for CI servers, rendered from records: pure functions, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.report.elements import Json
from pipeline.report.entries import Entry
from pipeline.report.html.pages import index_page, package_page
from pipeline.report.junit import junit
from pipeline.report.markdown import markdown, markdown_summary

__all__ = ["Entry", "render", "render_all"]


def render(report: Json, sources: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Render the reports of a package, by file name.

    Args:
        sources: texts of the files of the workspace that `excerpts.named_files` gives. Of others
            only the lines that the record quotes are shown.
    """
    return {
        "junit.xml": junit([report]),
        "report.html": package_page(report, sources or {}),
        "report.md": markdown(report).encode(errors="replace"),
    }


def render_all(entries: Iterable[Entry], timeline: Json | None = None) -> dict[str, bytes]:
    """Render the reports over all packages, by file name; `timeline` is that of the last run."""
    entries = list(entries)
    reports = [entry.report for entry in entries if entry.report is not None and not entry.error]
    not_built = {entry.package: entry.error for entry in entries if entry.error}
    return {
        "index.html": index_page(entries, timeline),
        "junit.xml": junit(reports, not_built),
        "summary.md": markdown_summary(entries).encode(errors="replace"),
    }
