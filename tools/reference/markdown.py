"""Turns strings from the code into Markdown."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """Escape a string so that Markdown interprets only its backquotes."""
    parts = re.split(r"(`[^`]*`)", text)
    shown = (re.sub(r"[*<]", lambda mark: "\\" + mark[0], each) for each in parts[::2])
    return "".join(a + b for a, b in zip(shown, [*parts[1::2], ""], strict=True))


def row(*cells: str) -> str:
    """Return a table row."""
    return f"| {' | '.join(plain(cell).replace('|', chr(92) + '|') for cell in cells)} |"
