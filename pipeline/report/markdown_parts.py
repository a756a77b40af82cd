"""Parts of Markdown that reports are put together from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def code(name: str) -> str:
    return f"`{name}`" if name else "-"


def section(title: str, table: str) -> str:
    return f"## {title}\n\n{table}" if table else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[int] = ()) -> str:
    """Columns in `numbers` are aligned right. Empty without rows."""
    lines = ["| " + " | ".join(cell(each) for each in row) + " |" for row in rows]
    if not lines:
        return ""
    rule = ("---:" if column in numbers else "---" for column in range(len(head)))
    return "\n".join(["| " + " | ".join(head) + " |", "| " + " | ".join(rule) + " |", *lines])


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
