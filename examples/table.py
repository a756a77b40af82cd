"""Writes the table in docs/guides/gallery.md from the records of builds."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from examples.build import HERE, packages

PAGE = HERE.parent / "docs" / "guides" / "gallery.md"
BEGIN, END = "<!-- python -m examples --table -->\n", "<!-- end of the table -->\n"
HEADINGS = (
    *("package", "model", "methods", "backends", "nodes delegated", "size", "max error"),
    *("same bytes as the joint call", "CPU s, build", "CPU s, joint call"),
)


def table(records: dict[str, Any]) -> str:
    """Return the table of all packages in Markdown; packages never built have an empty row."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for package in packages():
        record = records.get(package)
        rows.append(_row(package, record) if record else (package, *[""] * (len(HEADINGS) - 1)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(package: str, record: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"`{package}`",
        _title(package),
        ", ".join(f"`{name}`" for name in record["methods"]),
        ", ".join(record["backends"]) or "portable",
        f"{record['delegated_nodes']} of {record['nodes']}",
        f"{record['size'] / 1000:.1f} kB",
        f"{record['max_error']:.1e}" + ("" if record["valid"] else ", failed"),
        "yes" if record["same_bytes"] else "no",
        f"{record['seconds']:.0f}",
        f"{record['joint_seconds']:.0f}",
    )


def _title(package: str) -> str:
    """Return the beginning of the docstring of a package's exporter, up to a comma or a colon."""
    text = (HERE / "partition_configs" / f"{package}.yaml").read_text()
    model = next(line.split()[1] for line in text.splitlines() if line.startswith("model:"))
    path = HERE / "models" / f"{model}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition(",")[0].partition(":")[0].replace("\n", " ")


def write(records: dict[str, Any], page: Path = PAGE) -> None:
    """Write the table into the page, between its markers."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    page.write_text(head + BEGIN + table(records) + END + rest.partition(END)[2], encoding="utf-8")
