"""Reports for people and for CI servers, rendered from records: pure functions, without torch.

`render` makes the files of one package, `render_all` those over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.report.entries import Entry
from pipeline.report.html.excerpts import files
from pipeline.report.html.index import index_page
from pipeline.report.html.page import package_page
from pipeline.report.junit import junit
from pipeline.report.summary import summary

__all__ = ["Entry", "files", "render", "render_all"]

Json = Mapping[str, Any]

RENDERED = ("junit.xml", "report.html")
OVER_ALL = ("index.html", "junit.xml", "summary.md")


def render(report: Json, sources: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The reports of a package by file name, but for Markdown, which has a module of its own.

    Args:
        sources: texts of the files of the workspace that `files(report)` names. Of others only the
            lines that the record quotes are shown.
    """
    return {"junit.xml": junit([report]), "report.html": package_page(report, sources or {})}


def render_all(entries: Iterable[Entry], timeline: Json | None = None) -> dict[str, bytes]:
    """The reports over all packages by file name. `timeline` is that of the last run."""
    entries = list(entries)
    reports = [entry.report for entry in entries if entry.report is not None and not entry.error]
    not_built = {entry.package: entry.error for entry in entries if entry.error}
    return {
        "index.html": index_page(entries, timeline),
        "junit.xml": junit(reports, not_built),
        "summary.md": summary(entries).encode(errors="replace"),
    }
