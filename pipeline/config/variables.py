"""Variables in the texts of a config: `${NAME}`, `${NAME:-default}` and `${matrix.axis}`.

A value without quotes that is one variable and nothing else is read as if its content stood there,
as a number or true as well as text; anything else becomes text. `$$` is a dollar sign. Where the
values come from, the caller says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.yaml import Node, plain, read_scalar
from pipeline.store.errors import Problem, did_you_mean, shown

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(
    rf"\$(?:(?P<dollar>\$)|\{{(?:matrix\.(?P<axis>[^${{}}]*)"
    rf"|(?P<name>{_NAME})(?P<default>:-[^${{}}]*)?)\}}|(?P<wrong>\{{[^}}]*\}}?|{_NAME}|))"
)
_SPELLINGS = "write ${NAME} or ${NAME:-default}, and $$ for a dollar sign"


@dataclass
class Variables:
    """The values of variables, and those of the environment that were asked for.

    Attributes:
        environment: the variables of the environment by name.
        matrix: the values of the axes of one package; None where there is no matrix.
        read: the names of all variables that were asked for, set or not.
        problems: those of variables that have no value.
    """

    environment: Mapping[str, str]
    matrix: Mapping[str, Any] | None = None
    read: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def for_package(self, axes: Mapping[str, Any] | None) -> Variables:
        """Return the variables of one package, with its values of a matrix and its own problems."""
        return Variables(self.environment, axes, self.read)

    def wrong(self, node: Node, what: str, known: str = "") -> None:
        """Add a problem of a node."""
        mark = node.mark
        self.problems.append(Problem(mark.file, mark.path, what, known, mark.line))

    def must(self, node: Node, be: str, known: str = "") -> None:
        """Add the problem that a node must be something else."""
        self.wrong(node, f"is {shown(plain(node))}, must {be}", known)

    def fill(self, node: Node, typed: bool = True) -> Node:
        """Fill in the variables of a node's text, if it is one. What is wrong with them is added
        to the problems, and the value is None then.

        Args:
            typed: whether what is a variable and nothing else can become another value than text.
        """
        if not isinstance(node.value, str) or "$" not in node.value:
            return node
        before = len(self.problems)
        whole = _VARIABLE.fullmatch(node.value)
        if whole and not whole["dollar"] and node.plain and typed:
            value = self._typed(whole, node)
        else:
            value = _VARIABLE.sub(lambda found: spelled(self._value(found, node)), node.value)
        if len(self.problems) > before:
            value = None
        return Node(value, node.mark, node.plain and typed, source=node.value)

    def _typed(self, found: re.Match[str], node: Node) -> Any:
        value = self._value(found, node)
        if found["axis"] is not None or not isinstance(value, str):
            return value
        try:
            return read_scalar(value)
        except ValueError as error:
            what, known = error.args
            self.wrong(node, f"{what}: the value of the variable {found['name']}", known)
            return None

    def _value(self, found: re.Match[str], node: Node) -> Any:
        axis, name, default = found["axis"], found["name"], found["default"]
        if found["dollar"]:
            return "$"
        if axis is not None:
            if self.matrix is not None and axis in self.matrix:
                return self.matrix[axis]
            if self.matrix is None:
                self.wrong(node, f"`${{matrix.{axis}}}`: there is no matrix here")
            else:
                known = did_you_mean(axis, self.matrix)
                self.wrong(node, f"the matrix has no axis '{axis}'", known)
            return ""
        if name is None:
            self.wrong(node, f"`{found[0]}` is no variable", _SPELLINGS)
            return ""
        self.read.add(name)
        value = self.environment.get(name)
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            what = f"the variable {name} is not set, and has no default"
            self.wrong(node, what, f"set it, or write ${{{name}:-default}}")
        return value or ""


def spelled(value: Any) -> str:
    """Write a scalar as part of a text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
