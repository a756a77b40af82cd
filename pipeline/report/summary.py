"""All packages in one Markdown table, for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.report import formatting as figures
from pipeline.report.entries import Entry, ordered, verdict
from pipeline.report.worst import delegated, greatest_error, size, worst_sqnr

# GitHub takes a summary of at most 1 MiB. Sentences can hold shapes and lists of operators.
_MOST, _MOST_FAILURES, _MOST_LETTERS = 900_000, 10, 400
_HEAD = ("package", "verdict", "target", "size", "delegated", "worst SQNR", "max error", "gates")
_RIGHT = range(3, 8)


def summary(entries: Iterable[Entry]) -> str:
    """What failed comes first. Equal entries give equal text."""
    entries = ordered(entries)
    failed = any(entry.failed for entry in entries)
    head = f"# {'FAILED: ' if failed else ''}{verdict(entries)}"
    parts = [head, _table([_row(entry) for entry in entries])]
    room = _MOST - sum(len(part.encode()) for part in parts)
    for entry in entries:
        if entry.failed and room > 0:
            told = _failures(entry)
            room -= len(told.encode())
            parts.append(told if room > 0 else "More in the reports of the packages.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(entry: Entry) -> Sequence[str]:
    report = entry.report
    outcome = entry.outcome.upper() if entry.failed else entry.outcome
    if report is None:
        return (f"`{entry.package}`", outcome, *[figures.NOTHING] * 6)
    gates = report.get("gates") or ()
    return (
        f"`{entry.package}`",
        outcome,
        str(report.get("target") or figures.NOTHING),
        figures.size(size(report)),
        figures.NOTHING if (share := delegated(report)) is None else figures.percent(share),
        figures.decibel(worst_sqnr(report)),
        figures.error(greatest_error(report)),
        f"{sum(gate['ok'] for gate in gates)} of {len(gates)}" if gates else figures.NOTHING,
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    rule = ["---:" if column in _RIGHT else "---" for column in range(len(_HEAD))]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in (_HEAD, rule, *rows))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _failures(entry: Entry) -> str:
    told = [f"- {_sentence(sentence)}" for sentence in entry.failures[:_MOST_FAILURES]]
    more = len(entry.failures) - _MOST_FAILURES
    told += [f"- and {more} more in `build/{entry.package}/report.md`"] if more > 0 else []
    return "\n".join([f"## {entry.package}", "", *told])


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    cut = text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
    return cut.replace("<", "&lt;")
