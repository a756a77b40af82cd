"""Finds the line of a model's source that a node comes from.

torch.export records in each node the calls that led to it, with file paths of the exporting
machine. Here files are named by their path in this workspace instead. None of this may enter a
package or a key. This module doesn't import torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pipeline.program.module_paths import Frame, module_frames, parse_frames
from pipeline.store.source_line import SourceLine

if TYPE_CHECKING:
    from torch.fx import Node

_FRAME = re.compile(  # one call of a stack trace
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)\n?(?P<code>[^\n]*)'
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Packages whose code surrounds a model's code and never belongs to the model.
_TRACERS = frozenset({"torch", "functorch"})
_LARGEST = 1 << 20  # bytes; functions aren't looked up in larger files


def source_line(node: Node, root: Path | None = None) -> SourceLine | None:
    """Return the line that a node comes from, or None if it is unknown.

    Of the calls that led to the node, this is the innermost one in a file of the workspace, or else
    the innermost one outside installed packages, or else the innermost one outside torch.

    Args:
        root: the workspace; by default the working directory.
    """
    trace = node.meta.get("stack_trace") or ""
    return _find_line(trace, module_frames(node), root or Path.cwd())


def list_lines(graph: Mapping[str, Any], root: Path) -> list[str]:
    """Return the line that each node of a graph in an archive's JSON comes from, or "".

    The nodes are in the archive's order, which is the same in every archive of a program.
    """
    lines = []
    for node in _iter_archived_nodes(graph):
        trace = node["metadata"].get("stack_trace") or ""
        modules = parse_frames(node["metadata"].get("nn_module_stack") or "")
        lines.append(str(_find_line(trace, modules, root) or ""))
    return lines


def _iter_archived_nodes(graph: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a graph, each followed by the nodes of its control-flow bodies."""
    for node in graph["nodes"]:
        yield node
        for node_input in node["inputs"]:
            if body := node_input["arg"].get("as_graph"):
                yield from _iter_archived_nodes(body["graph"])


def _find_line(trace: str, modules: Sequence[Frame], root: Path) -> SourceLine | None:
    """Return the line that a node with this stack trace, in these modules, comes from."""
    frame = choose_frame(parse_trace(trace), root)
    if not frame:
        return None
    # Keep only the modules around the frame. A module that inherits torch's `forward` has no line
    # of its own in the model: it surrounds the node, but not the frame.
    depth = _count_forwards(parse_trace(trace, tracers=True), frame)
    return name_line(frame, root, modules[:depth])


def _count_forwards(frames: Sequence[SourceLine], last: SourceLine) -> int:
    """Return how many `forward` calls lead to a frame, without counting torch's exporter."""
    depth = 0
    for frame in frames:
        depth += frame.function == "forward" and "_dynamo" not in frame.file
        if frame == last:
            break
    return depth


def parse_trace(trace: str, tracers: bool = False) -> list[SourceLine]:
    """Return the calls of a stack trace, outermost first.

    Files and functions have the names that Python records; `name_line` makes them readable.

    Args:
        tracers: whether to keep torch's own calls too, which can't be in a model.
    """
    frames = []
    for frame in _FRAME.finditer(trace):
        if tracers or is_model_file(frame["file"]):
            line = int(frame["line"])
            function = frame["function"].strip()
            frames.append(
                SourceLine(frame["file"], line, function, frame["code"].strip())
            )
    return frames


def choose_frame(frames: Sequence[SourceLine], root: Path) -> SourceLine | None:
    """Return the innermost call in a file of the workspace.

    Without one, returns the innermost call outside installed packages, or else the innermost of
    all.
    """
    for frame in reversed(frames):
        if _in_workspace(frame.file, root):
            return frame
    for frame in reversed(frames):
        if not _INSTALLED & set(PurePath(frame.file).parts):
            return frame
    return frames[-1] if frames else None


def name_line(
    frame: SourceLine, root: Path, modules: Sequence[Frame] = ()
) -> SourceLine:
    """Return the line of a call, with readable names of its file and function.

    Args:
        modules: the modules around the call, outermost first, to find a function's class.
    """
    workspace_path = _in_workspace(frame.file, root)
    function = ""
    if workspace_path:
        function = _find_function(root / workspace_path, frame.line, frame.code)
    if not function:
        function = _name_function(frame.function, frame.file, modules)
    file = workspace_path or _short_name(frame.file)
    return SourceLine(
        file,
        frame.line,
        function or frame.function,
        frame.code,
    )


def is_model_file(file: str) -> bool:
    """Return whether a file can contain code of a model.

    torch's own files can't, nor can code that torch generates while it traces, in files with names
    like `<eval_with_key>.5`.
    """
    path_in_package = _path_in_package(file)
    package = path_in_package[0] if path_in_package else ""
    return package not in _TRACERS and not file.startswith("<")


def _path_in_package(file: str) -> tuple[str, ...] | None:
    """Return the parts of an installed file's path, starting with its package, or None."""
    parts = PurePath(file).parts
    for number in reversed(range(len(parts))):
        if parts[number] in _INSTALLED:
            return parts[number + 1 :]
    return None


def _short_name(file: str) -> str:
    """Return the short path of a file outside the workspace.

    It starts with the package if the file is installed, else with the file's folder.
    """
    path_in_package = _path_in_package(file)
    if path_in_package is None:
        return "/".join(PurePath(file).parts[-2:])
    return "/".join(path_in_package)


def _name_function(function: str, file: str, modules: Sequence[Frame]) -> str:
    """Return the name of a function whose file can't be read, with its class for a `forward`.

    The class is that of the innermost surrounding module that the file can define, judging by the
    file's name.
    """
    if function != "forward":
        return function
    stem = PurePath(file).stem
    for frame in reversed(modules):
        module, _, class_name = frame.kind.rpartition(".")
        if class_name and module.rpartition(".")[2] == stem:
            return f"{class_name}.forward"
    return function


def _find_function(path: Path, line: int, code: str) -> str:
    """Return the qualified name of the function that contains a line.

    Return "" if the line isn't in a function, or the file can't be read or has changed there.
    """
    try:
        state = path.stat()
    except OSError:
        return ""
    if state.st_size > _LARGEST:
        return ""
    texts, functions = _read_functions(path, state.st_mtime_ns)
    if line > len(texts) or (code and texts[line - 1].strip() != code):
        return ""
    for first, last, name in reversed(functions):  # the innermost first
        if first <= line <= last:
            return name
    return ""


@lru_cache(maxsize=64)
def _read_functions(
    path: Path, mtime_ns: int
) -> tuple[Sequence[str], Sequence[tuple[int, int, str]]]:
    """Return the lines of a Python file, and its functions sorted by their first lines.

    Each function is a tuple of its first line, its last line, and its qualified name. `mtime_ns`
    only distinguishes versions of the file in the cache.
    """
    try:
        text = path.read_text()
        functions = list(_iter_functions(ast.parse(text), ""))
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
    """Return the source line that a node comes from as text, or else the node's name."""
    line = source_line(node, root)
    if line is None:
        return f"node {node.name}"
    return str(line)


def _in_workspace(file: str, root: Path) -> str:
    """Return the path of a file relative to the workspace, or "" if it isn't there.

    If the file's path isn't inside the workspace, the longest tail of the path that names a file
    there is returned.
    """
    path = PurePath(file)
    parts = path.parts
    if {*_INSTALLED, ".."} & set(parts):
        return ""
    # For a path inside this workspace, look at no other file: an exporter answers for every file
    # that it reads.
    if path.is_relative_to(root) and Path(path).is_file():
        return path.relative_to(root).as_posix()
    # The exporting machine may have had the workspace at another path, so only the tail can match.
    for start in range(1, len(parts)):
        tail = PurePath(*parts[start:])
        if (root / tail).is_file():
            return tail.as_posix()
    return ""
