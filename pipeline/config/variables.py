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

from pipeline.config.yaml import Mark, Node, read_scalar
from pipeline.store.errors import Problem, did_you_mean

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

    def fill(self, node: Node) -> Node:
        """Fill in the variables of a node's text, if it is one, and add what is wrong with them to
        the problems."""
        if not isinstance(node.value, str) or "$" not in node.value:
            return node
        before = len(self.problems)
        whole = _VARIABLE.fullmatch(node.value)
        if whole and not whole["dollar"] and node.plain:
            value = self._typed(whole, node.mark)
        else:
            value = _VARIABLE.sub(lambda found: spelled(self._value(found, node.mark)), node.value)
        if len(self.problems) > before:
            value = None
        return Node(value, node.mark, node.plain, source=node.value)

    def _typed(self, found: re.Match[str], mark: Mark) -> Any:
        value = self._value(found, mark)
        if found["axis"] is not None or not isinstance(value, str):
            return value
        try:
            return read_scalar(value)
        except ValueError as error:
            what, known = error.args
            self.problems.append(
                mark.problem(f"{what}: the value of the variable {found['name']}", known)
            )
            return None

    def _value(self, found: re.Match[str], mark: Mark) -> Any:
        if found["dollar"]:
            return "$"
        if found["axis"] is not None:
            return self._axis_value(found["axis"], mark)
        name, default = found["name"], found["default"]
        if name is None:
            what = f"`{found[0]}` is no variable"
            self.problems.append(mark.problem(what, _SPELLINGS))
            return ""
        self.read.add(name)
        value = self.environment.get(name)
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            what = f"the variable {name} is not set, and has no default"
            self.problems.append(mark.problem(what, f"set it, or write ${{{name}:-default}}"))
        return value or ""

    def _axis_value(self, axis: str, mark: Mark) -> Any:
        if self.matrix is None:
            self.problems.append(mark.problem(f"`${{matrix.{axis}}}`: there is no matrix here"))
        elif axis not in self.matrix:
            what = f"the matrix has no axis '{axis}'"
            self.problems.append(mark.problem(what, did_you_mean(axis, self.matrix)))
        else:
            return self.matrix[axis]
        return ""


def spelled(value: Any) -> str:
    """Write a scalar as part of a text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
