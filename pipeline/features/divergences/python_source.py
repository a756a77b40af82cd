"""A Python file, and the definitions of the names on a line, as far as the file shows them.

Definitions are looked up only by name, in the function, the class and its bases in the same file.
Doesn't import torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

_LARGEST = 1 << 21  # bytes of a file to parse
_DEPTH = 3  # levels of definitions to follow
_DEFINITIONS = 24


# The name of a function or an assignment's target; the target, or None for a function; the function
# or the assigned value; and the function and the class that contain the definition.
_Definition = tuple[str, ast.expr | None, ast.AST, ast.AST, ast.AST]


class SourceFile:
    """A parsed file, with the function and the class around each line."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.scopes: list[ast.AST] = [tree]
        self.owners: list[ast.AST] = [tree]
        self.definitions: list[_Definition] = []
        self._index(tree, tree, tree)

    def _index(self, node: ast.AST, scope: ast.AST, owner: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            inner, holder = scope, owner
            if isinstance(child, ast.FunctionDef):
                self.scopes.append(child)
                self.definitions.append((child.name, None, child, scope, owner))
                inner = child
            elif isinstance(child, ast.ClassDef):
                self.owners.append(child)
                holder = child
            for target, value in _assignments(child):
                # By the last part of the name: both `self.scale` and `scale` are looked up.
                name = getattr(target, "attr", getattr(target, "id", ""))
                self.definitions.append((name, target, value, scope, owner))
            self._index(child, inner, holder)

    def scope(self, line: int) -> ast.AST:
        """Return the innermost function around a line, or the module."""
        return innermost(self.scopes, line) or self.tree

    def owner(self, line: int) -> ast.AST:
        """Return the innermost class around a line, or the module."""
        return innermost(self.owners, line) or self.tree

    def statement(self, line: int) -> ast.stmt | None:
        """Return the innermost statement on a line."""
        statements = [
            node for node in ast.walk(self.scope(line)) if isinstance(node, ast.stmt)
        ]
        statement = innermost(statements, line)
        return statement if isinstance(statement, ast.stmt) else None

    def explain(self, node: ast.AST) -> str:
        """Return a node's text, followed by the definitions of the names in it."""
        texts: list[str] = []
        pending = [(node, 0)]
        while pending and len(texts) < _DEFINITIONS:
            part, depth = pending.pop(0)
            texts.append(_own_text(part))
            if depth < _DEPTH:
                pending += [
                    (definition, depth + 1)
                    for definition in self.find_definitions(part)
                ]
        return "\n".join(texts)

    def find_definitions(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the definitions of the names in a node.

        These are values assigned to variables of the same function and to attributes, and functions
        of the file.
        """
        variables, attributes = _names(node)
        line = getattr(node, "lineno", 0)
        visible_scopes = (self.scope(line), self.tree)
        owner = self.owner(line)
        for definition in self.definitions:
            name, _, value, scope, holder = definition
            if name in variables and holder in (owner, self.tree):
                if scope in visible_scopes:
                    yield value
            elif name in attributes and self._is_visible(definition, owner):
                yield value

    def _is_visible(self, definition: _Definition, owner: ast.AST) -> bool:
        """Return whether a definition can be an attribute of a class's objects.

        Its class must be this one or one of its bases in the file.
        """
        _, target, _, scope, holder = definition
        # A function's variable isn't an attribute.
        if isinstance(target, ast.Name) and scope is not self.tree:
            return False
        if holder in (owner, self.tree) or not isinstance(owner, ast.ClassDef):
            return True
        bases = [getattr(base, "id", getattr(base, "attr", "")) for base in owner.bases]
        return getattr(holder, "name", "") in bases

    def called(self, node: ast.AST, depth: int) -> Iterator[ast.FunctionDef]:
        """Yield functions of the file that a statement calls, and the functions that those call."""
        names = set()
        owner = self.owner(getattr(node, "lineno", 0))
        for part in shallow_walk(node):
            if isinstance(part, ast.Call):
                names.add(getattr(part.func, "attr", getattr(part.func, "id", "")))
        for definition in self.definitions:
            name, _, function, _, _ = definition
            if not isinstance(function, ast.FunctionDef) or function is node:
                continue
            if name in names and self._is_visible(definition, owner):
                yield function
                if depth:
                    yield from self.called(function, depth - 1)


def innermost(nodes: Iterable[ast.AST], line: int) -> ast.AST | None:
    """Return the smallest of the nodes that contain a line."""
    around = []
    for node in nodes:
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0):
            around.append(node)
    return min(around, key=extent, default=None)


def _names(node: ast.AST) -> tuple[set[str], set[str]]:
    """Return the variables and the attributes that a node names."""
    variables = set()
    attributes = set()
    for part in shallow_walk(node):
        if isinstance(part, ast.Name):
            variables.add(part.id)
        elif isinstance(part, ast.Attribute):
            attributes.add(part.attr)
    return variables, attributes


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif (
        isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr))
        and node.value is not None
    ):
        yield node.target, node.value


def _own_text(node: ast.AST) -> str:
    """Return a node's text; for a compound statement only its head."""
    if isinstance(node, (ast.If, ast.While)):
        return ast.unparse(node.test)
    if isinstance(node, ast.For):
        return ast.unparse(node.iter)
    return ast.unparse(node)


def shallow_walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node's parts; for a compound statement only those of its head."""
    if isinstance(node, (ast.If, ast.While)):
        yield from ast.walk(node.test)
    elif isinstance(node, ast.For):
        yield from ast.walk(node.iter)
    else:
        yield from ast.walk(node)


def extent(node: ast.AST) -> tuple[int, int]:
    """Return a node's size in its file, in lines and then in columns."""
    first = getattr(node, "lineno", 0)
    last = getattr(node, "end_lineno", 0) or 0
    width = (getattr(node, "end_col_offset", 0) or 0) - getattr(node, "col_offset", 0)
    return last - first, width


def read_source(path: Path) -> SourceFile | None:
    """Return a parsed file, cached; None if it can't be read, isn't Python, or is too large."""
    try:
        state = path.stat()
    except OSError:
        return None
    if state.st_size <= _LARGEST:
        return _parse(path, state.st_mtime_ns)
    return None


@lru_cache(maxsize=32)
def _parse(path: Path, changed: int) -> SourceFile | None:
    """Parse a file; `changed` is its modification time, as part of the cache key."""
    try:
        text = path.read_text()
        return SourceFile(ast.parse(text))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
