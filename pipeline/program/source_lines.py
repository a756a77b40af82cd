"""Finds the line of a model's source that a node comes from.

torch.export writes into each node the calls that led to it. Their paths are those of the machine
that exported, so a file is named as it is called in this workspace; nothing of this may get into
a package or a key. No torch here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pipeline.program.module_paths import module_frames

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)\n?(?P<code>[^\n]*)'
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Packages whose code runs around a model's and is never a line of the model.
_TRACERS = frozenset({"torch", "functorch"})
_LARGEST = 1 << 20  # bytes of a file in which a function is looked up by its line


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
    innermost one outside of installed packages, or else the innermost one that is not in torch.

    Args:
        root: the workspace; by default the working directory.
    """
    frames = parse_trace(node.meta.get("stack_trace") or "")
    frame = choose_frame(frames, root or Path.cwd())
    return name_line(frame, root or Path.cwd(), node) if frame is not None else None


@dataclass(frozen=True)
class TraceFrame:
    """One call in the trace of a node, or of a run; `code` is the text of the line."""

    file: str
    line: int
    function: str
    code: str


def parse_trace(trace: str, tracers: bool = False) -> list[TraceFrame]:
    """Return the calls of a trace, outermost first.

    Args:
        tracers: keep torch's own as well, which can't be in a model.
    """
    frames = []
    for frame in _FRAME.finditer(trace):
        if tracers or is_model_file(frame["file"]):
            line, function = int(frame["line"]), frame["function"].strip()
            frames.append(TraceFrame(frame["file"], line, function, frame["code"].strip()))
    return frames


def choose_frame(frames: Sequence[TraceFrame], root: Path) -> TraceFrame | None:
    """Return the innermost call in a file of the workspace, or else outside of installed packages,
    or else the innermost of all."""
    own = [frame for frame in frames if _in_workspace(frame.file, root)]
    foreign = [frame for frame in frames if not _INSTALLED & set(PurePath(frame.file).parts)]
    return next(reversed(own or foreign or frames), None)


def name_line(frame: TraceFrame, root: Path, node: Node | None = None) -> SourceLine:
    """Return a call's line as people name it.

    Args:
        node: what the line is of, whose modules can tell a function's class.
    """
    inside = _in_workspace(frame.file, root)
    function = _find_function(root / inside, frame.line, frame.code) if inside else ""
    if not function and node is not None:
        function = _name_function(frame.function, frame.file, node)
    file = inside or _short_name(frame.file)
    return SourceLine(frame.code, file, frame.line, function or frame.function)


def is_model_file(file: str) -> bool:
    """Return whether a frame can be in a model: torch's own are not, nor is code that torch makes
    while it traces, whose files are called `<eval_with_key>.5`."""
    parts = PurePath(file).parts
    installed = [number for number, part in enumerate(parts) if part in _INSTALLED]
    package = parts[installed[-1] + 1] if installed and installed[-1] + 1 < len(parts) else ""
    return package not in _TRACERS and not file.startswith("<")


def _short_name(file: str) -> str:
    """Return the path of a file that is not in the workspace: from its package on where it is
    installed, or else with its folder."""
    parts = PurePath(file).parts
    installed = [number for number, part in enumerate(parts) if part in _INSTALLED]
    return "/".join(parts[installed[-1] + 1 :] if installed else parts[-2:])


def _name_function(function: str, file: str, node: Node) -> str:
    """Return the name of a function whose file can't be read, with the class of the innermost
    module around the node that the file can define."""
    if function != "forward":
        return function
    kinds = (frame.kind.rpartition(".") for frame in reversed(module_frames(node)))
    stem = PurePath(file).stem
    known = (kind for module, _, kind in kinds if module.rpartition(".")[2] == stem)
    return f"{name}.forward" if (name := next(known, "")) else function


def _find_function(path: Path, line: int, code: str) -> str:
    """Return the qualified name of the function that holds a line; "" where it is none, or where
    the file has another line there by now."""
    try:
        state = path.stat()
    except OSError:
        return ""
    if state.st_size > _LARGEST:
        return ""
    texts, functions = _read_functions(path, state.st_mtime_ns)
    if line > len(texts) or (code and texts[line - 1].strip() != code):
        return ""
    return next((name for first, last, name in reversed(functions) if first <= line <= last), "")


@lru_cache(maxsize=64)
def _read_functions(
    path: Path, changed: int
) -> tuple[Sequence[str], Sequence[tuple[int, int, str]]]:
    """Return the lines of a Python file, and each function's first and last line and qualified
    name, by their first lines. `changed` is when the file was, for the cache."""
    try:
        text = path.read_text()
        functions = [*_iter_functions(ast.parse(text), "")]
    except (OSError, ValueError, SyntaxError, RecursionError):
        return (), ()
    return text.splitlines(), sorted(functions)


def _iter_functions(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield child.lineno, child.end_lineno or child.lineno, name
            yield from _iter_functions(child, f"{name}.")
        else:
            yield from _iter_functions(child, prefix)


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
