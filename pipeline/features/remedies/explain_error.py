"""Explains why an action ended: the source line, the operator, the error's message, and the remedy.

The line is the innermost line of the workspace: quoted in the message (torch quotes the model's
stack), in the traceback, or recorded on the graph node that the failing function was handling.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pipeline
from pipeline.features.remedies.near_names import suggest_name
from pipeline.features.remedies.remedies import add_remedy
from pipeline.program.operators import node_label
from pipeline.program.source_lines import source_line
from pipeline.store.errors import PipelineError, describe_error
from pipeline.store.reasons import find_full_disk, iter_causes
from pipeline.store.source_line import SourceLine
from pipeline.store.visible import one_line

if TYPE_CHECKING:
    from torch.fx import Node

_OWN = Path(pipeline.__file__).parent
_INSTALLED = {"site-packages", "dist-packages"}
# A line of a file of the workspace, and the operator there, "" if it isn't known.
_Location = tuple[SourceLine | None, str]
_QUOTED = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in ')


def explain_error(error: BaseException, root: Path) -> str:
    """Describe in one line why an action ended: where, why, and the remedy if one is known.

    Args:
        root: the workspace.
    """
    steps = getattr(error, "__notes__", ())  # added by `compile.steps`
    full_disk = find_full_disk(error)
    if full_disk is not None:  # it outranks any error that followed
        message = ": ".join([*map(one_line, steps), describe_error(full_disk)])
        return add_remedy(message, error=full_disk)
    message = describe_error(error)
    if isinstance(error, PipelineError):
        return add_remedy(message, error=error)
    message += suggest_name(error)
    refused = _find_refused(error, root) or [_find_place(error, root)]
    (line, operator), *further = refused
    place = _describe_place(line, operator)
    message = ": ".join(filter(None, (place, *map(one_line, steps), message)))
    if further:
        more = (one_line(f"{operator} ({_where(line)})") for line, operator in further)
        message = f"{message.rstrip('.')}; the same applies to {', '.join(more)}"
    return add_remedy(message, [operator for _, operator in further], error)


def _describe_place(line: SourceLine | None, operator: str) -> str:
    """Return a line of the workspace and the operator there, if known, or ""."""
    if line is None and not operator:
        return ""
    code = f"`{line.code}`" if line and line.code else ""
    return one_line(": ".join(filter(None, (_where(line), code, operator))))


def _where(line: SourceLine | None) -> str:
    return line.where if line else "no line is known"


def _find_refused(error: BaseException, root: Path) -> list[_Location]:
    """Return a line for each operator that a verifier of torch or ExecuTorch rejects.

    They are in the order of the program; the verifier itself raises at the first one. The list is
    empty for any other error.
    """
    verifiers = sys.modules.get("torch._export.verifier")
    lines: dict[str, SourceLine | None] = {}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        check, graph = (frame.f_locals.get(name) for name in ("self", "gm"))
        if (
            verifiers is None
            or not isinstance(check, verifiers.Verifier)
            or graph is None
        ):
            continue
        for node in _iter_calls(graph):
            if (label := node_label(node)) not in lines and _is_refused(check, node):
                lines[label] = source_line(node, root)
    return [(line, label) for label, line in lines.items()]


def _is_refused(verifier: Any, node: Node) -> bool:
    try:
        verifier.check_valid_op(node.target)
    except Exception as error:  # other errors didn't end the action
        return type(error).__name__ == "SpecViolationError"
    return False


def _iter_calls(module: Any) -> Iterator[Node]:
    """Yield the calls of a graph module and its submodules."""
    for submodule in module.modules():
        if (graph := getattr(submodule, "graph", None)) is not None:
            yield from (node for node in graph.nodes if node.op == "call_function")


def _find_place(error: BaseException, root: Path) -> _Location:
    """Return the line of the workspace at which an error was raised, starting from its first cause.

    If the line was found through a node, its operator is returned as well.
    """
    errors = [*iter_causes(error)][::-1]
    for cause in errors:
        if isinstance(cause, SyntaxError) and (
            file := _inside(cause.filename or "", root)
        ):
            code = (cause.text or "").strip()
            return SourceLine(file, cause.lineno or 1, code=code), ""
        quoted = [
            (match["file"], int(match["line"]))
            for match in _QUOTED.finditer(str(cause))
        ]
        frames = [
            (f.filename, f.lineno or 0)
            for f in traceback.extract_tb(cause.__traceback__)
        ]
        for path, line in (*reversed(quoted), *reversed(frames)):
            if file := _inside(path, root):
                code = linecache.getline(str(root / file), line).strip()
                return SourceLine(file, line, code=code), ""
    for cause in errors:
        for node in _iter_nodes(cause.__traceback__):
            if source := source_line(node, root):
                return source, node_label(node)
    return None, ""


def _inside(path: str, root: Path) -> str:
    """Return the path of a user's file in the workspace, or "" for any other file."""
    file = Path(path)
    if (
        not file.is_absolute()
        or file.is_relative_to(_OWN)
        or _INSTALLED & set(file.parts)
    ):
        return ""
    for folder in (root, root.resolve()):
        if file.is_relative_to(folder):
            return file.relative_to(folder).as_posix()
    return ""


def _iter_nodes(trace: TracebackType | None) -> Iterator[Node]:
    """Yield the nodes that a traceback's functions were handling, the innermost function first.

    Variables called `node` or `n` come before all other variables.
    """
    if (fx := sys.modules.get("torch.fx")) is None:
        return
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(trace)][::-1]
    named = (values.get(name) for values in frames for name in ("node", "n"))
    values_of_locals = (value for values in frames for value in values.values())
    for value in (*named, *values_of_locals):
        if isinstance(value, fx.Node) and value.op == "call_function":
            yield value
