"""Markdown reports: of one package for pull requests, of all packages for a CI job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from pipeline.features.pages import heads
from pipeline.features.pages.codes import add_code, kind_of
from pipeline.features.pages.sections import report_sections
from pipeline.moments import call_all
from pipeline.report.elements import Cell, DataTable, ReportSection
from pipeline.report.formatting import NOTHING
from pipeline.report.packages import Entry, sort_entries

# GitHub accepts a summary of at most 1 MiB and a comment of at most 65,536 characters. Sentences
# can be long: they can hold shapes and lists of operators.
_MOST_BYTES, _MOST_FAILURES, _MOST_LETTERS, _MOST_OF_A_COMMENT = (
    900_000,
    10,
    400,
    60_000,
)
_IN_SUMMARY = ("not-judged", "not-run", "changes", "provenance")  # sections
# The tables that are never folded, apart from tables of changes.
_OPEN = ("failed", "culprits", "warnings")


def markdown(
    report: Mapping[str, Any], sections: Sequence[ReportSection] | None = None
) -> str:
    """Render the report of a package as a pull request comment.

    The verdict, the changes and the failures are shown. The other sections are folded, and those
    that don't fit in a comment are only named. Charts are left out.

    Args:
        sections: sections of the report, by default those made from its record.
    """
    verdict = report["verdict"]
    if not report["ok"]:
        verdict = verdict.upper()
    if sections is None:
        sections = report_sections(report)
    parts = [
        f"# {_escape(report['package'])}: {verdict}",
        _escape(heads.about(report)),
        heads.lead(report),
        _list_figures(report),
    ]
    for table in _open_tables(report, sections):
        parts += [f"### {table.title}", _table(table)]
    room = _MOST_OF_A_COMMENT - sum(len(part) for part in parts)
    parts += _fold(sections, room)
    return "\n\n".join(filter(None, parts)) + "\n"


def _list_figures(report: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for title, cell in heads.known_figures(report).items():
        heading = title[0].upper() + title[1:]
        lines.append(f"- {heading}: {_cell(cell)}")
    return "\n".join(lines)


def _open_tables(
    report: Mapping[str, Any], sections: Iterable[ReportSection]
) -> Iterator[DataTable]:
    """Yield the tables that are not folded."""
    for table in call_all("highlights", report):
        if table:
            yield table
    for section in sections:
        for part in section.parts:
            if _is_open(part):
                yield part


def _is_open(part: object) -> TypeGuard[DataTable]:
    return isinstance(part, DataTable) and part.name in _OPEN


def _fold(sections: Iterable[ReportSection], room: int) -> Iterator[str]:
    """Yield the sections, folded, without the parts shown above.

    A last sentence names the sections that don't fit.
    """
    left_out: list[str] = []
    for section in sections:
        parts = list(_section(section))
        if not parts:
            continue
        text = "\n\n".join(parts)
        folded = f"<details><summary>{_escape(section.title)}</summary>\n\n{text}\n\n</details>"
        if len(folded) > room:
            # Go on: a later section may be short enough.
            left_out.append(section.title)
            continue
        room -= len(folded)
        yield folded
    if left_out:
        yield f"Left out here, see report.html: {', '.join(left_out)}."


def markdown_summary(
    entries: Iterable[Entry], sections: Iterable[ReportSection] = ()
) -> str:
    """Render the summary of a CI job, at most about 900 kB.

    It holds the table of all packages, the failures of each, and the sections of the page over all
    packages that belong in a summary.
    """
    entries = sort_entries(entries)
    failed = [entry for entry in entries if entry.failed]
    mark = ""
    if failed:
        mark = "FAILED: "
    parts = [f"# {mark}{heads.overall_verdict(entries)}"]
    if entries:
        parts.append(_table(heads.table(entries)))
    shown: list[str] = []
    for section in sections:
        if section.name in _IN_SUMMARY and section.parts:
            shown.append("\n\n".join([f"## {section.title}", *_section(section)]))
    room = _MOST_BYTES
    for part in (*parts, *shown):
        room -= len(part.encode())
    for entry in failed:
        failures = _failures(entry)
        room -= len(failures.encode())
        if room < 0:
            parts.append("More in the reports of the packages.")
            break
        parts.append(failures)
    return "\n\n".join([*parts, *shown]) + "\n"


def _failures(entry: Entry) -> str:
    lines = [f"## {_escape(entry.package)}", ""]
    for failure in entry.failures[:_MOST_FAILURES]:
        sentence = add_code(failure, kind_of(entry.error) or "validate", _MOST_LETTERS)
        lines.append(f"- {_escape(sentence)}")
    more = len(entry.failures) - _MOST_FAILURES
    if more > 0:
        page = _code(f"build/{entry.package}/report.md")
        lines.append(f"- and {more} more in {page}")
    return "\n".join(lines)


def _section(section: ReportSection) -> Iterator[str]:
    """Yield the parts of a section, except charts and the tables that are shown unfolded."""
    for part in section.parts:
        if isinstance(part, str):
            yield _escape(part)
        elif isinstance(part, DataTable) and part.brief and part.name not in _OPEN:
            table = part.cut(part.brief)
            yield from (f"### {table.title}", _table(table))


def _table(table: DataTable) -> str:
    lines = [_line(table.columns)]
    lines.append(_line(["---:" if numeric else "---" for numeric in table.numeric]))
    for cells in table.cells:
        lines.append(_line([_cell(cell) for cell in cells]))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    if cell.kind in ("name", "code", "line-of", "fix"):
        text = _code(cell.text)
    else:
        text = _escape(cell.text)
        if cell.kind == "bad" and cell.text != NOTHING:
            text = f"**{text}**"
    if cell.note:
        text += f" ({_escape(cell.note)})"
    # GitHub ends a table cell at this character, even inside code.
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    """Return a code span with a fence longer than any run of backticks in the text."""
    text = " ".join(text.split())
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    if runs:
        return f"{fence} {text} {fence}"
    return f"`{text}`"


def _escape(text: str) -> str:
    """Return the text on one line, with tags, links and images escaped."""
    return " ".join(text.split()).replace("<", "&lt;").replace("](", "]\\(")
