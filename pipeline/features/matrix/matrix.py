"""`matrix:` makes several packages from one file: one for each combination of its axes' values.

An axis is a list of values, for `${matrix.axis}`, or a mapping of names to parts of a config; each
part is merged over the rest of the file in the packages of that name. A package that isn't such a
combination needs its own file, which extends the same base.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.config.fields import wrong_package_name
from pipeline.config.variables import (
    AXIS_PATTERN,
    Combination,
    Variables,
    spelled,
)
from pipeline.config.yaml import Node
from pipeline.store.errors import shown

_NOT_IN_PARTS = ("extends", "matrix", "package")
_MOST = 1000


# The values of an axis, each with the part of a config that it selects, or None.
_Axis = list[tuple[Any, Node | None]]


def expand_matrix(
    node: Node, variables: Variables, stem: str, template: Node | None, root: Node
) -> dict[str, Combination]:
    """Return the combinations of a matrix, by the names of their packages.

    If something is wrong with the matrix, combinations may be missing, and the problems of the
    variables say why.

    Args:
        stem: the name of the file without its suffix.
        template: the `package` of the file, which names the packages; None if it has none.
        root: the config without `matrix` and `package`.
    """
    matrix = Matrix(node, variables)
    packages = matrix.packages(stem, template)
    if not variables.problems:
        matrix.check_uses([root, *filter(None, [template])])
    return packages


class Matrix:
    """Reads the axes of a matrix and combines their values.

    Problems with the matrix are added to those of the variables.
    """

    def __init__(self, node: Node, variables: Variables) -> None:
        self._node = node
        self._variables = variables
        members: dict[Any, Node] = {}
        if isinstance(node.value, dict):
            members = {
                key: member for key, member in node.value.items() if not member.takes
            }
        else:
            variables.must(node, "be a mapping of axes", "write `axis: [value, value]`")
        self._axes = {
            name: self._axis(name, member) for name, member in members.items()
        }

    def packages(self, stem: str, template: Node | None) -> dict[str, Combination]:
        """Return the combinations, by the names of their packages."""
        variables = self._variables
        place = template or self._node
        named: dict[str, Combination] = {}
        folded_names: set[str] = set()
        for axes, parts in self._combinations():
            name: Any = "-".join([stem, *map(spelled, axes.values())])
            if template is not None:
                package_variables = variables.for_package(axes)
                name = package_variables.fill(template, typed=False).value
                if package_variables.problems:
                    variables.problems += package_variables.problems
                    # All combinations have the same problem.
                    break
            fault = wrong_package_name(name)
            if fault:
                fault_text = f"cannot name a package: {shown(name)} {fault}"
                hint = "write `package:` to name them in another way"
                if template:
                    hint = ""
                variables.wrong(place, fault_text, hint)
            elif name in named:
                fault_text = (
                    f"'{name}' is the name of two packages: {_describe(named[name][0])}; "
                    f"and {_describe(axes)}"
                )
                variables.wrong(place, fault_text, "name every axis in it")
            elif name.casefold() in folded_names:
                fault_text = (
                    f"'{name}' differs from the name of another package only in case"
                )
                hint = (
                    "use distinct names: on macOS and Windows they are the same folder"
                )
                variables.wrong(place, fault_text, hint)
            else:
                named[name] = axes, parts
                folded_names.add(name.casefold())
        return named

    def check_uses(self, nodes: Sequence[Node]) -> None:
        """Check that each axis with several values is used, or consists of parts of a config."""
        texts = "\n".join(_iter_texts([*nodes, self._node]))
        for name, axis in self._axes.items():
            is_text = len(axis) > 1 and all(part is None for _, part in axis)
            # The second spelling is a mistake too, but a different one.
            uses = (f"${{matrix.{name}}}", f"${{{name}}}")
            if is_text and not any(use in texts for use in uses):
                fault = "is an axis that the config doesn't use, so its packages would be identical"
                remedy = f"write ${{matrix.{name}}} where its values belong"
                self._variables.wrong(self._node.value[name], fault, remedy)

    def _combinations(self) -> list[Combination]:
        """Return the combinations in the order of the axes and their values.

        Empty if something is wrong with the axes.
        """
        variables = self._variables
        axes = self._axes
        if variables.problems:
            return []
        if not axes:
            variables.wrong(self._node, "has no axis", "write `axis: [value, value]`")
            return []
        # Count combinations before making them, since axes multiply.
        number = math.prod(map(len, axes.values()))
        if number > _MOST:
            fault = f"makes {number} packages, more than {_MOST}"
            variables.wrong(self._node, fault, "split the axes between several configs")
            return []
        return [self._combine(members) for members in itertools.product(*axes.values())]

    def _combine(self, members: tuple[tuple[Any, Node | None], ...]) -> Combination:
        axes = dict(zip(self._axes, (value for value, _ in members), strict=True))
        return axes, [part for _, part in members if part is not None]

    def _axis(self, name: Any, node: Node) -> _Axis:
        wrong = self._variables.wrong
        must = self._variables.must
        if not isinstance(name, str) or not re.fullmatch(AXIS_PATTERN, name):
            rule = "must be letters, digits, '_' and '-'"
            wrong(node, f"cannot name an axis: {shown(name)} {rule}")
        axis: _Axis = []
        if isinstance(node.value, dict) and node.value:
            axis = [
                (value, part) for value, part in node.value.items() if not part.takes
            ]
            for value, part in axis:
                self._check_part(part)
                if not _is_value(value):
                    wrong(node, f"{shown(value)} is not a value of an axis")
        elif isinstance(node.value, list) and node.value:
            for item in node.value:
                value = self._value(item)
                if value is not None and _find(axis, value):
                    wrong(item, f"names {shown(value)} twice", "keep one")
                axis.append((value, None))
        else:
            must(
                node,
                "be a list of values",
                "or a mapping of names to parts of a config",
            )
        return axis

    def _value(self, node: Node) -> Any:
        """Return a value of an axis with its variables filled in, or None if it has a problem."""
        filled = self._variables.fill(node)
        if filled.value is None and node.value is not None:
            return None
        if not _is_value(filled.value):
            self._variables.must(filled, "be a string, a number, true or false")
            return None
        return filled.value

    def _check_part(self, part: Node | None) -> None:
        if part is not None and not isinstance(part.value, dict):
            self._variables.must(
                part, "be a mapping, a part of a config", "`{}` changes nothing"
            )
        elif part is not None:
            for key in part.value.keys() & _NOT_IN_PARTS:
                fault = f"'{key}' is not allowed in a part of a config"
                self._variables.wrong(
                    part.value[key], fault, "move it to the top level"
                )


def _iter_texts(nodes: Iterable[Node]) -> Iterator[str]:
    """Yield all strings in nodes, at any depth."""
    for node in nodes:
        if isinstance(node.value, str):
            yield node.value
        elif isinstance(node.value, dict):
            yield from _iter_texts(node.value.values())
        elif isinstance(node.value, list):
            yield from _iter_texts(node.value)


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _find(axis: _Axis, value: Any) -> tuple[Any, Node | None] | None:
    return next((member for member in axis if _same(member[0], value)), None)


def _same(value: Any, expected: Any) -> bool:
    """Return whether two values and their types are the same: 1 is neither true nor 1.0."""
    return type(value) is type(expected) and value == expected


def _describe(axes: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis} {spelled(value)}" for axis, value in axes.items())
