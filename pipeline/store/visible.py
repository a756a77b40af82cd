"""Makes foreign text visible: names, messages and logs that others wrote, for terminals and pages.

A name can contain a control sequence that a terminal obeys (ESC), a newline that starts a fake
line, a character that reverses the order of letters (U+202E), or a lone surrogate. All are shown as
Python escapes: `\\x1b`, `\\n`, `\\u202e`, `\\udcff`.
"""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"  # without tab and newline
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Lines, marks, halves.
_OTHERS = "\u2028\u2029\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"
# Compiled on first use: a no-op run uses neither, since visible text isn't searched.
_HIDDEN = f"[{_CONTROLS}{_DIRECTIONS}{_OTHERS}]"
_HIDDEN_OR_SPACE = f"[\t\n{_HIDDEN[1:]}"


def visible(text: str) -> str:
    """Escape the invisible characters in one of our own strings, except line ends and tabs."""
    if text.replace("\n", "").isprintable():
        return text
    return re.sub(_HIDDEN, _escape, text)


def one_line(text: object) -> str:
    """Return foreign text as one line, with invisible characters escaped."""
    line = str(text)
    if line.isprintable():
        return line
    return re.sub(_HIDDEN_OR_SPACE, _escape, line)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
