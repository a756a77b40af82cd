"""Finds the line of a model's source that a node comes from.

torch.export writes into each node the calls that led to it. Their paths are those of the machine
that exported, so a file is named as it is called in this workspace; nothing of this may get into
a package or a key. No torch here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pipeline.program.module_paths import module_frames

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)\n?(?P<code>[^\n]*)'
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class SourceLine:
    """A line of a model's source, as `x + y  # models/small.py:12, in Small.forward`.

    `code` is the text of the line, "" where that is not known.
    """

    code: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}, in {self.function}"
        return f"{self.code}  # {place}" if self.code else place


def source_line(node: Node, root: Path | None = None) -> SourceLine | None:
    """Return the line that a node comes from; None if that is unknown.

    Of the calls that led to it, the innermost one in a file of the workspace counts, or else the
    innermost one outside of installed packages, or else the innermost.

    Args:
        root: the workspace; by default the working directory.
    """
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return None
    root = root or Path.cwd()
    own = [frame for frame in frames if _in_workspace(frame["file"], root)]
    foreign = [frame for frame in frames if not _INSTALLED & set(PurePath(frame["file"]).parts)]
    frame = (own or foreign or frames)[-1]
    file = _in_workspace(frame["file"], root) or "/".join(PurePath(frame["file"]).parts[-2:])
    function = frame["function"].strip()
    if function == "forward" and (modules := module_frames(node)):
        function = f"{modules[-1].kind.rpartition('.')[2]}.forward"
    return SourceLine(frame["code"].strip(), file, int(frame["line"]), function)


def describe_node(node: Node, root: Path | None = None) -> str:
    """Return the line that a node comes from with its place behind it, or the node's name."""
    line = source_line(node, root)
    return f"node {node.name}" if line is None else str(line)


def _in_workspace(file: str, root: Path) -> str:
    """Return the longest end of a path that is a file in the workspace; "" if none is."""
    parts = PurePath(file).parts
    if {*_INSTALLED, ".."} & set(parts):
        return ""
    tails = (PurePath(*parts[start:]) for start in range(1, len(parts)))
    return next((tail.as_posix() for tail in tails if (root / tail).is_file()), "")
