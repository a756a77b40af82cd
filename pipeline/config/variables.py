"""Variables in the strings of a config: `${NAME}`, `${NAME:-default}` and `${matrix.axis}`.

An unquoted value that consists of one variable is read as if its content stood there, for example
as a number or a boolean; any other value becomes text. `$$` is a dollar sign. Only variables that
the workspace lists can be read: people who may change a config must not be able to read the others,
which include a build machine's passwords.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipeline.config.secrets import Secret
from pipeline.config.yaml import Node, plain, read_scalar
from pipeline.store.errors import Problem, did_you_mean, shown
from pipeline.store.settings import Environment

AXIS_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(
    rf"\$(?:(?P<dollar>\$)|\{{(?:matrix\.(?P<axis>[^${{}}]*)"
    rf"|(?P<name>{_NAME})(?P<default>:-[^${{}}]*)?)\}}|(?P<wrong>\{{[^}}]*\}}?|{_NAME}|))"
)
_SPELLINGS = "write ${NAME} or ${NAME:-default}, and $$ for a dollar sign"


# A value for each axis of a matrix, and the parts of a config that are merged over the rest in its
# package, in this order.
Combination = tuple[dict[str, Any], list[Node]]


class Variables:
    """The values of variables, and the environment variables that were looked up.

    Attributes:
        environment: the variables that may be read.
        matrix: the values of the axes for one package; None if there is no matrix.
        read: the names of all variables that were looked up, set or not.
        problems: the problems of variables without a value.
    """

    def __init__(
        self,
        environment: Environment,
        matrix: Mapping[str, Any] | None = None,
        read: set[str] | None = None,
    ) -> None:
        self.environment = environment
        self.matrix = matrix
        self.read: set[str] = set() if read is None else read
        self.problems: list[Problem] = []

    def for_package(self, axes: Mapping[str, Any] | None) -> Variables:
        """Return the variables of one package, with its matrix values and its own problems."""
        return Variables(self.environment, axes, self.read)

    def wrong(self, node: Node, fault: str, hint: str = "") -> None:
        """Add a problem about a node."""
        self.problems.append(node.problem(fault, hint))

    def must(self, node: Node, be: str, hint: str = "") -> None:
        """Add the problem that a node must be something else."""
        self.wrong(node, f"is {shown(plain(node))}, must {be}", hint)

    def fill(self, node: Node, typed: bool = True) -> Node:
        """Fill in the variables of a node's text, if it is one.

        If a variable can't be filled in, a problem is added and the value becomes None.

        Args:
            typed: whether a value that is a single variable may become something other than text.
        """
        if not isinstance(node.value, str) or "$" not in node.value:
            return node
        before = len(self.problems)
        whole = _VARIABLE.fullmatch(node.value)
        value: Any
        if whole and whole["name"] in self.environment.secrets:
            value = self._secret(whole, node, typed)
        elif whole and not whole["dollar"] and node.plain and typed:
            value = self._typed(whole, node)
        else:
            value = _VARIABLE.sub(
                lambda match: spelled(self._value(match, node)),
                node.value,
            )
        if len(self.problems) > before:
            value = None
        return node.with_value(value, node.plain and typed, source=node.value)

    def _typed(self, match: re.Match[str], node: Node) -> Any:
        value = self._value(match, node)
        if match["axis"] is not None or not isinstance(value, str):
            return value
        try:
            return read_scalar(value)
        except ValueError as error:
            fault, hint = error.args
            self.wrong(
                node,
                f"{fault}: the value of the variable {match['name']}",
                hint,
            )
            return None

    def _secret(self, match: re.Match[str], node: Node, typed: bool) -> Secret | None:
        self.read.add(match["name"])
        value = self.environment.get(match["name"])
        if value is None:
            self.wrong(node, f"the variable {match['name']} is not set", "set it")
        elif not typed or match["default"]:
            self._refuse_secret(match["name"], node)
        else:
            return Secret(match["name"], value)
        return None

    def _refuse_secret(self, name: str, node: Node) -> None:
        fault = f"the variable {name} is secret, and this value would be recorded"
        self.wrong(
            node,
            fault,
            f"`${{{name}}}`, alone, can only be an option of a pass",
        )

    def check_secrets(self, node: Node, place: tuple[object, ...] = ()) -> Node:
        """Refuse secrets anywhere but in the options of a pass."""
        if not self.read & set(self.environment.secrets):
            return node
        if isinstance(node.value, Secret) and not _is_pass_option(place):
            self._refuse_secret(node.value.name, node)
            return node.with_value(None)
        members = node.value
        if isinstance(members, dict):
            members = {
                key: self.check_secrets(member, (*place, key))
                for key, member in members.items()
            }
        elif isinstance(members, list):
            members = [
                self.check_secrets(member, (*place, number))
                for number, member in enumerate(members)
            ]
        return node.with_value(members, node.plain, node.takes, node.source)

    def _value(self, match: re.Match[str], node: Node) -> Any:
        axis = match["axis"]
        name = match["name"]
        default = match["default"]
        if match["dollar"]:
            return "$"
        if axis is not None:
            if self.matrix is not None and axis in self.matrix:
                return self.matrix[axis]
            if self.matrix is None:
                self.wrong(node, f"`${{matrix.{axis}}}`: this config has no matrix")
            else:
                hint = did_you_mean(axis, self.matrix)
                self.wrong(node, f"the matrix has no axis '{axis}'", hint)
            return ""
        if name is None:
            self.wrong(node, f"`{match[0]}` is not a variable", _SPELLINGS)
            return ""
        self.read.add(name)
        if name not in self.environment.names:
            fault = f"configs may not read the variable {name}"
            self.wrong(node, fault, self._suggest(name, self.environment.remedy))
            return ""
        if name in self.environment.secrets:
            self._refuse_secret(name, node)
            return ""
        value = self.environment.get(name)
        if default is not None:
            return value or default.removeprefix(":-")
        if value is None:
            fault = f"the variable {name} is not set, and has no default"
            remedy = f"set it, or write ${{{name}:-default}}"
            self.wrong(node, fault, self._suggest(name, remedy))
        return value or ""

    def _suggest(self, name: str, remedy: str) -> str:
        """Return how to write the matrix axis that has a variable's name, or else the remedy."""
        if name in (self.matrix or ()):
            return f"an axis of the matrix is written ${{matrix.{name}}}"
        return remedy


def _is_pass_option(place: tuple[object, ...]) -> bool:
    """Return whether a path leads into the options of a pass: `emit.passes[0].<name>.<option>`."""
    if place[:1] == ("methods",) and place[2:3] == ("edge",):
        place = place[2:]
    lists = (("passes",), ("passes_after_delegation",))
    place = tuple(part for part in place if part != "factory")
    is_in_lists = place[:1] in (("edge",), ("emit",)) and place[1:2] in lists
    return is_in_lists and len(place) > 4


def spelled(value: Any) -> str:
    """Format a scalar as part of a string."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
