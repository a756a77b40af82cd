"""Reports in Markdown: of one package for pull requests, of all for the summary of a CI job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from pipeline.moments import call_all
from pipeline.report import packages
from pipeline.report.elements import Cell, DataTable, ReportSection
from pipeline.report.formatting import NOTHING
from pipeline.report.packages import Entry
from pipeline.report.sections import report_sections

# GitHub takes a summary of at most 1 MiB, and a comment of at most 65,536 characters. Sentences can
# hold shapes and lists of operators.
_MOST_BYTES, _MOST_FAILURES, _MOST_LETTERS, _MOST_OF_A_COMMENT = 900_000, 10, 400, 60_000
_IN_SUMMARY = ("not-judged", "not-run", "changes", "provenance")  # sections
_OPEN = ("failed", "culprits", "warnings")  # the tables that are not folded, and those of changes


def markdown(report: Mapping[str, Any], sections: Sequence[ReportSection] | None = None) -> str:
    """Render the report of a package, for a comment of a pull request: the verdict, what changed
    and what failed; the rest is folded, as far as there is room. Charts are left out.

    Args:
        sections: those of the report, by default what its record holds.
    """
    figures, verdict = packages.known_figures(report).items(), report["verdict"]
    parts = [
        f"# {_escape(report['package'])}: {verdict if report['ok'] else verdict.upper()}",
        _escape(packages.about(report)),
        packages.lead(report),
        "\n".join(f"- {title[0].upper()}{title[1:]}: {_cell(cell)}" for title, cell in figures),
    ]
    sections = report_sections(report) if sections is None else sections
    opened = [part for each in sections for part in each.parts if _is_open(part)]
    for table in [*call_all("highlights", report), *opened]:
        if table:
            parts += [f"### {table.title}", _table(table)]
    parts += _fold(sections, _MOST_OF_A_COMMENT - sum(len(part) for part in parts))
    return "\n\n".join(filter(None, parts)) + "\n"


def _is_open(part: object) -> TypeGuard[DataTable]:
    return isinstance(part, DataTable) and part.name in _OPEN


def _fold(sections: Iterable[ReportSection], room: int) -> Iterator[str]:
    """Yield the sections, each folded, without what is shown already; a long one that does not
    fit is named."""
    left_out = []
    for section in sections:
        if not (parts := list(_section(section))):
            continue
        text = "\n\n".join(parts)
        whole = f"<details><summary>{_escape(section.title)}</summary>\n\n{text}\n\n</details>"
        if (room := room - len(whole)) < 0:
            room += len(whole)
            left_out.append(section.title)
        else:
            yield whole
    if left_out:
        yield f"In report.html, for lack of room: {', '.join(left_out)}."


def markdown_summary(entries: Iterable[Entry], sections: Iterable[ReportSection] = ()) -> str:
    """Render all packages as one table, and the failures of each, at most 900 kB in all; then the
    sections of the page over all packages that a summary shows."""
    entries = packages.sort_entries(entries)
    failed = [entry for entry in entries if entry.failed]
    parts = [f"# {'FAILED: ' if failed else ''}{packages.overall_verdict(entries)}"]
    parts += [_table(packages.table(entries))] if entries else []
    shown = [each for each in sections if each.name in _IN_SUMMARY]
    more = ["\n\n".join([f"## {each.title}", *_section(each)]) for each in shown if each.parts]
    room = _MOST_BYTES - sum(len(part.encode()) for part in [*parts, *more])
    for entry in failed:
        failures = _failures(entry)
        room -= len(failures.encode())
        if room < 0:
            parts.append("More in the reports of the packages.")
            break
        parts.append(failures)
    return "\n\n".join([*parts, *more]) + "\n"


def _failures(entry: Entry) -> str:
    shown = map(_escape, entry.failures[:_MOST_FAILURES])
    lines = [f"- {s if len(s) <= _MOST_LETTERS else s[: _MOST_LETTERS - 1] + '…'}" for s in shown]
    more = len(entry.failures) - _MOST_FAILURES
    more_in = _code(f"build/{entry.package}/report.md")
    lines += [f"- and {more} more in {more_in}"] if more > 0 else []
    return "\n".join([f"## {_escape(entry.package)}", "", *lines])


def _section(section: ReportSection) -> Iterator[str]:
    """Yield the parts of a section, without charts and what is shown open."""
    for part in section.parts:
        if isinstance(part, str):
            yield _escape(part)
        elif isinstance(part, DataTable) and part.brief and part.name not in _OPEN:
            table = part.cut(part.brief)
            yield from (f"### {table.title}", _table(table))


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
