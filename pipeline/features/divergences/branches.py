"""Finds the branch, loop or context that decides whether a line runs. Doesn't import torch.

Two runs that reached two different lines diverged at the statement with these lines in different
arms.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from pipeline.features.divergences.python_source import (
    SourceFile,
    extent,
    read_source,
    shallow_walk,
)

_DEPTH = 3  # levels of calls to follow
_LONGEST = 80  # characters of a statement in a message
Conditional = ast.If | ast.IfExp | ast.While | ast.Try | ast.For | ast.Match
_CONDITIONALS = (ast.If, ast.IfExp, ast.While, ast.Try, ast.For, ast.Match)


@dataclass(frozen=True)
class Branch:
    """A statement or expression that decides which lines run.

    Attributes:
        kind: "if", "loop" or "try".
        line: its first line.
        text: the text of its first line, for quoting.
        reasons: the text of its test, and of the definitions that the test refers to.
    """

    kind: str
    line: int
    text: str
    reasons: str
    last: int = 0


def find_branch(path: Path, line: int, other_line: int | None) -> Branch | None:
    """Return the outermost statement that decides between two lines of a function.

    The lines are in different arms of it, or only one of them is in an arm. Returns None if there
    is no such statement.

    Args:
        other_line: the other run's line; if None, the innermost statement with `line` in an arm is
            returned.
    """
    source = read_source(path)
    if source is None:
        return None
    scope = source.scope(line)
    # A line of another function can't be in an arm of this one.
    if other_line is not None and source.scope(other_line) is not scope:
        other_line = None
    candidates: list[Conditional] = []
    for node in ast.walk(scope):
        if isinstance(node, _CONDITIONALS):
            arm = _arm(node, line)
            if other_line is None:
                # A `for` or `try` contains many lines without deciding whether they run.
                if arm is not None and not isinstance(node, (ast.For, ast.Try)):
                    candidates.append(node)
            elif arm != _arm(node, other_line):
                candidates.append(node)
    if not candidates:
        return None
    candidates.sort(key=extent)
    # The outermost one: everything inside it runs in only one of the two runs.
    return _describe(source, candidates[0] if other_line is None else candidates[-1])


def find_expression(path: Path, line: int) -> Branch | None:
    """Return the conditional expression in the statement on a line, or None if it has none."""
    source = read_source(path)
    statement = source.statement(line) if source else None
    if source is None or statement is None:
        return None
    for node in shallow_walk(statement):
        if isinstance(node, ast.IfExp):
            return _describe(source, node)
    return None


def find_called_branches(path: Path, line: int) -> list[Branch]:
    """Return the branches in functions of the same file that the statement on a line calls."""
    source = read_source(path)
    statement = source.statement(line) if source else None
    if source is None or statement is None:
        return []
    branches = []
    for function in source.called(statement, _DEPTH):
        for node in ast.walk(function):
            if isinstance(node, (ast.If, ast.IfExp)):
                branches.append(_describe(source, node))
    return branches


def find_loop(path: Path, line: int) -> Branch | None:
    """Return the innermost loop around a line."""
    source = read_source(path)
    if source is None:
        return None
    loops = []
    for node in ast.walk(source.scope(line)):
        if isinstance(node, (ast.For, ast.While)) and _arm(node, line) == 0:
            loops.append(node)
    if loops:
        return _describe(source, min(loops, key=extent))
    return None


def describe_statement(path: Path, line: int) -> str:
    """Return the text of the statement on a line, and of the definitions that it uses.

    These are the definitions in its file.
    """
    source = read_source(path)
    statement = source.statement(line) if source else None
    if source and statement is not None:
        return source.explain(statement)
    return ""


def find_contexts(path: Path, line: int) -> str:
    """Return the texts of `with` statements and decorators around a line."""
    source = read_source(path)
    if source is None:
        return ""
    texts = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.With) and node.lineno <= line <= (node.end_lineno or 0):
            texts += [ast.unparse(entry.context_expr) for entry in node.items]
        elif isinstance(node, ast.FunctionDef) and node.lineno <= line <= (
            node.end_lineno or 0
        ):
            texts += [ast.unparse(decorator) for decorator in node.decorator_list]
    return " ".join(texts)


def _describe(source: SourceFile, node: Conditional) -> Branch:
    if isinstance(node, (ast.For, ast.While)):
        kind = "loop"
        decisive = node.iter if isinstance(node, ast.For) else node.test
    elif isinstance(node, ast.Try):
        kind, decisive = "try", None
    else:
        kind = "if"
        decisive = node.subject if isinstance(node, ast.Match) else node.test
    text = _head(node)
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    last = decisive.end_lineno if decisive is not None else node.lineno
    reasons = ""
    if decisive is not None:
        reasons = source.explain(decisive)
    return Branch(kind, node.lineno, shown, reasons, last or node.lineno)


def _head(node: Conditional) -> str:
    """Return the head of a conditional, without its body, for quoting."""
    if isinstance(node, ast.IfExp):
        return ast.unparse(node)
    return ast.unparse(node).partition("\n")[0]


def _arm(node: ast.AST, line: int) -> int | None:
    """Return the number of the arm that contains a line.

    Returns None outside, in a test, and in the body of a `try`, which always runs.
    """
    for number, part in enumerate(_arms(node)):
        if part and part[0].lineno <= line <= (part[-1].end_lineno or 0):
            return number
    return None


def _arms(node: ast.AST) -> list[list[ast.stmt] | list[ast.expr]]:
    if isinstance(node, ast.IfExp):
        return [[node.body], [node.orelse]]
    if isinstance(node, ast.Try):
        return [handler.body for handler in node.handlers]
    if isinstance(node, ast.Match):
        return [case.body for case in node.cases]
    return [node.body, node.orelse]  # type: ignore[attr-defined]
