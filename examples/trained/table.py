"""Writes the table of trained models in docs/guides/gallery.md from the records of builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from examples.trained.build import PRECISIONS, models
from examples.trained.measures import HERE, TASKS

PAGE = HERE.parents[1] / "docs" / "guides" / "gallery.md"
BEGIN, END = "<!-- python -m examples.trained --table -->\n", "<!-- end of trained models -->\n"
HEADINGS = (
    *("package", "verdict", "size", "nodes delegated", "worst SQNR on examples, by method"),
    *("task", "correct: source", "correct: package", "answers kept"),
)


def packages() -> list[str]:
    """Return the names of all packages, sorted."""
    return [f"{model}-{precision}" for model in models() for precision in PRECISIONS]


def table(records: dict[str, Any]) -> str:
    """Return the table of all packages in Markdown; packages never built have an empty row."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for package in packages():
        record = records.get(package)
        rows.append(_row(record) if record else (f"`{package}`", *[""] * (len(HEADINGS) - 1)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    figures = record["sqnr"].items()
    return (
        f"`{record['package']}`",
        record["verdict"],
        f"{record['size'] / 1000:.1f} kB",
        f"{record['delegated_nodes']} of {record['nodes']}",
        ", ".join(f"`{method}` {decibels:.1f} dB" for method, decibels in figures),
        TASKS[record["model"]].question,
        f"{record['source_right']} of {record['known']}",
        f"{record['right']} of {record['known']}",
        f"{record['same']} of {record['answers']}",
    )


def write(records: dict[str, Any], page: Path = PAGE) -> None:
    """Write the table into the page, between its markers."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    page.write_text(head + BEGIN + table(records) + END + rest.partition(END)[2], encoding="utf-8")
