"""`matrix:` makes several packages of one file: every combination of the values of its axes.

An axis is a list of values, for `${matrix.axis}`, or a mapping of names to parts of a config, each
merged over the rest of the file in the packages of that name. `exclude` leaves combinations out,
`include` adds some, or adds to some.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.fields import wrong_package_name
from pipeline.config.variables import Variables, spelled
from pipeline.config.yaml import Node
from pipeline.store.errors import did_you_mean, shown

AXIS_PATTERN = r"^(?!(include|exclude|config)$)[A-Za-z_][A-Za-z0-9_-]*$"
_PART = "config"  # the key of an `include` that holds a part of a config
_NOT_IN_PARTS = ("extends", "matrix", "package")
_MOST = 1000


@dataclass
class Combination:
    """A value of each axis, and the parts that are merged over the rest, in this order."""

    values: dict[str, Any]
    parts: list[Node] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{axis} {spelled(value)}" for axis, value in self.values.items())

    def matches(self, chosen: dict[str, Any]) -> bool:
        return all(_same(self.values[name], value) for name, value in chosen.items())


# The values of an axis, each with the part of a config that it stands for, or None.
_Axis = list[tuple[Any, Node | None]]


class Matrix:
    """Reads the axes of a matrix and combines their values. What is wrong is added to the problems
    of the variables."""

    def __init__(self, node: Node, variables: Variables) -> None:
        self._node, self._variables = node, variables
        members: dict[Any, Node] = {}
        if isinstance(node.value, dict):
            members = {key: member for key, member in node.value.items() if not member.takes}
        else:
            variables.must(node, "be a mapping of axes", "write `axis: [value, value]`")
        self._exclude, self._include = members.pop("exclude", None), members.pop("include", None)
        self._axes = {name: self._axis(name, member) for name, member in members.items()}

    def packages(self, stem: str, template: Node | None) -> dict[str, Combination]:
        """Return the combinations by the names of their packages."""
        variables, place = self._variables, template or self._node
        named: dict[str, Combination] = {}
        for combination in self._combinations():
            name: Any = "-".join([stem, *map(spelled, combination.values.values())])
            if template is not None:
                package_variables = variables.for_package(combination.values)
                name = package_variables.fill(template, typed=False).value
                if package_variables.problems:
                    variables.problems += package_variables.problems
                    break
            if fault := wrong_package_name(name):
                fault_text = f"cannot name a package: {shown(name)} {fault}"
                hint = "" if template else "write `package:` to name them in another way"
                variables.wrong(place, fault_text, hint)
            elif name in named:
                fault_text = (
                    f"'{name}' is the name of two packages: {named[name]}; and {combination}"
                )
                variables.wrong(place, fault_text, "name every axis in it")
            else:
                named[name] = combination
        return named

    def _combinations(self) -> list[Combination]:
        """Return the combinations in the order of the axes and their values; none where something
        is wrong with them."""
        variables, axes = self._variables, self._axes
        if variables.problems:
            return []
        if not axes:
            variables.wrong(self._node, "has no axis", "write `axis: [value, value]`")
            return []
        number = math.prod(map(len, axes.values()))
        if number > _MOST:
            fault = f"makes {number} packages, more than {_MOST}"
            variables.wrong(self._node, fault, "take axes apart into files")
            return []
        combinations = [self._combine(members) for members in itertools.product(*axes.values())]
        for entry in self._entries(self._exclude):
            combinations = self._without(combinations, entry)
        for entry in self._entries(self._include):
            combinations += self._added(combinations, entry)
        if not combinations and not variables.problems:
            variables.wrong(self._node, "leaves no combination", "exclude less")
        return [] if variables.problems else combinations

    def _combine(self, members: tuple[tuple[Any, Node | None], ...]) -> Combination:
        values = dict(zip(self._axes, (value for value, _ in members), strict=True))
        return Combination(values, [part for _, part in members if part is not None])

    def _axis(self, name: Any, node: Node) -> _Axis:
        wrong, must = self._variables.wrong, self._variables.must
        if not isinstance(name, str) or not re.fullmatch(AXIS_PATTERN, name):
            rule = "must be letters, digits, '_' and '-', not 'config'"
            wrong(node, f"cannot name an axis: {shown(name)} {rule}")
        axis: _Axis = []
        if isinstance(node.value, dict) and node.value:
            axis = [(value, part) for value, part in node.value.items() if not part.takes]
            for value, part in axis:
                self._check_part(part)
                if not _is_value(value):
                    wrong(node, f"{shown(value)} is no value of an axis")
        elif isinstance(node.value, list) and node.value:
            for item in node.value:
                value = self._value(item)
                if value is not None and _find(axis, value):
                    wrong(item, f"names {shown(value)} twice", "keep one")
                axis.append((value, None))
        else:
            must(node, "be a list of values", "or a mapping of names to parts of a config")
        return axis

    def _value(self, node: Node) -> Any:
        """Fill in a value of an axis; None where it has a problem."""
        filled = self._variables.fill(node)
        if filled.value is None and node.value is not None:
            return None
        if not _is_value(filled.value):
            self._variables.must(filled, "be text, a number, true or false")
            return None
        return filled.value

    def _check_part(self, part: Node | None) -> None:
        if part is not None and not isinstance(part.value, dict):
            self._variables.must(part, "be a mapping, a part of a config", "`{}` changes nothing")
        elif part is not None:
            for key in part.value.keys() & _NOT_IN_PARTS:
                fault = f"'{key}' cannot stand in a part of a config"
                self._variables.wrong(part.value[key], fault, "write it at the top")

    # Leaving out and adding

    def _entries(self, node: Node | None) -> Iterator[Node]:
        """Yield the mappings of `exclude` or `include`."""
        if node is not None and not isinstance(node.value, list):
            self._variables.must(node, "be a list of mappings", "write `- {axis: value}`")
        elif node is not None and len(node.value) > _MOST:
            fault = f"has {len(node.value)} entries, more than {_MOST}"
            self._variables.wrong(node, fault, "take axes apart into files")
        elif node is not None:
            for item in node.value:
                if isinstance(item.value, dict):
                    yield item
                else:
                    self._variables.must(item, "be a mapping", "write `- {axis: value}`")

    def _chosen(self, entry: Node, *but: str) -> dict[str, Any] | None:
        """Return the values that an entry names; None where something is wrong with them."""
        before = len(self._variables.problems)
        chosen: dict[str, Any] = {}
        for name, node in entry.value.items():
            if name in self._axes:
                chosen[name] = self._value(node)
            elif name not in but:
                hint = did_you_mean(str(name), [*self._axes, *but])
                self._variables.wrong(node, f"the matrix has no axis {shown(name)}", hint)
        return chosen if len(self._variables.problems) == before else None

    def _without(self, combinations: list[Combination], entry: Node) -> list[Combination]:
        if (chosen := self._chosen(entry)) is None:
            return combinations
        remaining = []
        for combination in combinations:
            if not combination.matches(chosen):
                remaining.append(combination)
        if len(remaining) == len(combinations):
            self._no_match(entry, chosen)
        return remaining

    def _added(self, combinations: list[Combination], entry: Node) -> list[Combination]:
        """Add to the combinations that an entry matches, else return the one that it makes."""
        chosen, part = self._chosen(entry, _PART), entry.value.get(_PART)
        self._check_part(part)
        if chosen is None:
            return []
        parts = [] if part is None else [part]
        matching = [combination for combination in combinations if combination.matches(chosen)]
        if matching and part is None:
            fault = f"{matching[0]} is there already"
            self._variables.wrong(entry, fault, "add a `config:` to it, or leave it out")
        for combination in matching:
            combination.parts += parts
        if matching:
            return []
        members = []
        for name, axis in self._axes.items():
            member = _find(axis, chosen[name]) if name in chosen else None
            # Values can be added to a list, but no name to a mapping of parts.
            if member is None and name in chosen and not axis[0][1]:
                member = chosen[name], None
            if member is None:
                self._no_match(entry, chosen)
                return []
            members.append(member)
        added = self._combine(tuple(members))
        added.parts += parts
        return [added]

    def _no_match(self, entry: Node, chosen: dict[str, Any]) -> None:
        for name, value in chosen.items():
            if not _find(self._axes[name], value):
                values = [spelled(member) for member, _ in self._axes[name]]
                hint = did_you_mean(spelled(value), values)
                fault = f"axis '{name}' has no value {shown(value)}"
                return self._variables.wrong(entry, fault, hint)
        return self._variables.wrong(entry, "matches no combination", "leave it out")


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _find(axis: _Axis, value: Any) -> tuple[Any, Node | None] | None:
    return next((member for member in axis if _same(member[0], value)), None)


def _same(value: Any, expected: Any) -> bool:
    """Compare values with their types: 1 is neither true nor 1.0."""
    return type(value) is type(expected) and value == expected
