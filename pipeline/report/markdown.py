"""Reports in Markdown: of one package for pull requests, of all for the summary of a CI job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.report import packages
from pipeline.report.elements import Cell, DataTable, ReportSection
from pipeline.report.formatting import NOTHING
from pipeline.report.packages import Entry
from pipeline.report.sections import report_sections

# GitHub takes a summary of at most 1 MiB. Sentences can hold shapes and lists of operators.
_MOST_BYTES, _MOST_FAILURES, _MOST_LETTERS = 900_000, 10, 400


def markdown(report: Mapping[str, Any]) -> str:
    """Render the report of a package; the verdict is its first line. Charts are left out."""
    figures, verdict = packages.known_figures(report).items(), packages.outcome(report)
    parts = [
        f"# {_escape(report['package'])}: {verdict if report['ok'] else verdict.upper()}",
        _escape(packages.about(report)),
        packages.lead(report),
        "\n".join(f"- {title[0].upper()}{title[1:]}: {_cell(cell)}" for title, cell in figures),
    ]
    for section in report_sections(report):
        parts += _section(section)
    return "\n\n".join(filter(None, parts)) + "\n"


def markdown_summary(entries: Iterable[Entry]) -> str:
    """Render all packages as one table, and the failures of each, at most 900 kB in all."""
    entries = packages.sort_entries(entries)
    failed = [entry for entry in entries if entry.failed]
    parts = [f"# {'FAILED: ' if failed else ''}{packages.overall_verdict(entries)}"]
    parts += [_table(packages.table(entries))] if entries else []
    room = _MOST_BYTES - sum(len(part.encode()) for part in parts)
    for entry in failed:
        failures = _failures(entry)
        room -= len(failures.encode())
        if room < 0:
            parts.append("More in the reports of the packages.")
            break
        parts.append(failures)
    return "\n\n".join(parts) + "\n"


def _failures(entry: Entry) -> str:
    shown = map(_escape, entry.failures[:_MOST_FAILURES])
    lines = [f"- {s if len(s) <= _MOST_LETTERS else s[: _MOST_LETTERS - 1] + '…'}" for s in shown]
    more = len(entry.failures) - _MOST_FAILURES
    more_in = _code(f"build/{entry.package}/report.md")
    lines += [f"- and {more} more in {more_in}"] if more > 0 else []
    return "\n".join([f"## {_escape(entry.package)}", "", *lines])


def _section(section: ReportSection) -> list[str]:
    """Return the parts of a section below its heading; nothing where it has charts only."""
    parts = []
    for part in section.parts:
        if isinstance(part, str):
            parts.append(_escape(part))
        elif isinstance(part, DataTable) and part.brief:
            table = part.cut(part.brief)
            parts += [f"### {table.title}", _table(table)]
    return [f"## {section.title}", *parts] if parts else []


def _table(table: DataTable) -> str:
    rule = ("---:" if numeric else "---" for numeric in table.numeric)
    rows = [table.columns, rule, *([_cell(cell) for cell in row] for row in table.cells)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(cell: Cell) -> str:
    if cell.kind in ("name", "code", "line-of"):
        text = _code(cell.text)
    else:
        text = _escape(cell.text)
        text = f"**{text}**" if cell.kind == "bad" and cell.text != NOTHING else text
    note = f" ({_escape(cell.note)})" if cell.note else ""
    return (text + note).replace("|", "\\|")


def _code(text: str) -> str:
    """Return a span of code, in a fence that the text does not end."""
    text = " ".join(text.split())
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    return f"{fence} {text} {fence}" if runs else f"`{text}`"


def _escape(text: str) -> str:
    """Return text that is one line without tags, links and images."""
    return " ".join(text.split()).replace("<", "&lt;").replace("](", "]\\(")
