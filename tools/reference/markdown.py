"""Texts of the code as Markdown."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """Return a text in which only what stands in backquotes means something to Markdown."""
    parts = re.split(r"(`[^`]*`)", text)
    shown = (re.sub(r"[*<]", lambda mark: "\\" + mark[0], each) for each in parts[::2])
    return "".join(a + b for a, b in zip(shown, [*parts[1::2], ""], strict=True))


def row(*cells: str) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(plain(cell).replace('|', chr(92) + '|') for cell in cells)} |"
