"""Where in a model's source a node comes from, as `x + y  # models/small.py:12, in Small.forward`.

torch.export writes into each node the calls that led to it. Their paths are those of the machine
that exported, so a file is named as it is called in this workspace; nothing of this may get into
a package or a key. No torch here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n?(?P<code>[^\n]*)'
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class SourceLine:
    """A line of a model's source. `code` is its text, "" where that was not to be had."""

    code: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}, in {self.function}"
        return f"{self.code}  # {place}" if self.code else place


def source_line(node: Node, root: Path | None = None) -> SourceLine | None:
    """The line that a node comes from; None where nothing tells.

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
    module = _module(node)
    if function == "forward" and module:
        function = f"{module}.forward"
    return SourceLine(frame["code"].strip(), file, int(frame["line"]), function)


def told(node: Node, root: Path | None = None) -> str:
    """The line in backquotes with its place behind it, or else the name of the node."""
    line = source_line(node, root)
    return f"node {node.name}" if line is None else str(line)


def _in_workspace(file: str, root: Path) -> str:
    """Its path in the workspace: the longest end of it that is a file there; "" if none is."""
    parts = PurePath(file).parts
    if _INSTALLED & set(parts):
        return ""
    tails = (PurePath(*parts[start:]) for start in range(1, len(parts)))
    return next((tail.as_posix() for tail in tails if (root / tail).is_file()), "")


def _module(node: Node) -> str:
    """The class of the innermost module that a node is from."""
    stack = node.meta.get("nn_module_stack") or {}
    types = [kind for _, kind in stack.values()]
    if not types:
        return ""
    name = types[-1] if isinstance(types[-1], str) else types[-1].__qualname__
    return name.rpartition(".")[2]
