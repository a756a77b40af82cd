"""A line of source code, in the form in which records quote it and pages link to it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUOTED = re.compile(
    r"(?:(?P<code>.*)  # )?(?P<file>[^\s:][^:]*):(?P<line>\d+)(?:, in (?P<function>.+))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class SourceLine:
    """A line of source code, such as `x + y  # models/small.py:12, in Small.forward`.

    `code` is the text of the line and `function` the qualified name of its function; each is "" if
    unknown.
    """

    file: str
    line: int
    function: str = ""
    code: str = ""

    def __str__(self) -> str:
        place = f"{self.where}, in {self.function}"
        if self.code:
            return f"{self.code}  # {place}"
        return place

    @property
    def where(self) -> str:
        """The file and line, which is also the id of the line in a page."""
        return f"{self.file}:{self.line}"


def parse_source_line(text: str | None) -> SourceLine | None:
    """Parse `code  # file:line, in function` or `file:line`; return None for any other text."""
    match = _QUOTED.fullmatch(text or "")
    if match is None:
        return None
    return SourceLine(
        match["file"].strip(),
        int(match["line"]),
        match["function"] or "",
        (match["code"] or "").strip(),
    )
