"""`matrix:` makes several packages of one file: every combination of the values of its axes.

An axis is a list of values, for `${matrix.axis}`, or a mapping of names to parts of a config, each
merged over the rest of the file in the packages of that name. `exclude` leaves combinations out,
`include` adds some, or adds to some.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.fields import NAME_PATTERN, RULES
from pipeline.config.variables import Variables, spelled
from pipeline.config.yaml import Mark, Node, plain
from pipeline.store.errors import Problem, did_you_mean, shown

AXIS_PATTERN = r"^(?!(include|exclude|config)$)[A-Za-z_][A-Za-z0-9_-]*$"
_RESERVED = ("include", "exclude")
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


@dataclass(frozen=True)
class _Axis:
    """The values of an axis, and the parts of a config that they stand for, or None."""

    values: tuple[Any, ...]
    parts: Mapping[Any, Node] | None


def combinations(matrix: Node, variables: Variables) -> list[Combination]:
    """Return the combinations in the order of the axes and their values.

    What is wrong is added to the problems of the variables; the result then means nothing.
    """
    problems = variables.problems
    if not isinstance(matrix.value, dict):
        what = f"is {shown(plain(matrix))}, must be a mapping of axes"
        problems.append(matrix.mark.problem(what, "write `axis: [value, value]`"))
        return []
    members = {key: node for key, node in matrix.value.items() if not node.takes}
    lists = {name: members.pop(name, None) for name in _RESERVED}
    axes = {name: _axis(name, node, variables) for name, node in members.items()}
    if not axes:
        problems.append(matrix.mark.problem("has no axis", "write `axis: [value, value]`"))
    if problems:
        return []
    number = math.prod(len(axis.values) for axis in axes.values())
    if number > _MOST:
        what = f"makes {number} packages, more than {_MOST}"
        problems.append(matrix.mark.problem(what, "take axes apart into files"))
        return []
    found = [
        _combination(axes, dict(zip(axes, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes.values()))
    ]
    for entry in _entries(lists["exclude"], problems):
        found = _without(found, entry, axes, variables)
    for entry in _entries(lists["include"], problems):
        _include(found, entry, axes, variables)
    if not found and not problems:
        problems.append(matrix.mark.problem("leaves no combination", "exclude less"))
    return found


def _axis(name: Any, node: Node, variables: Variables) -> _Axis:
    problems = variables.problems
    if not isinstance(name, str) or not re.fullmatch(AXIS_PATTERN, name):
        what = (
            f"cannot name an axis: {shown(name)} must be letters, digits, '_' and '-', not 'config'"
        )
        problems.append(node.mark.problem(what))
    if isinstance(node.value, dict) and node.value:
        parts = {value: part for value, part in node.value.items() if not part.takes}
        for part in parts.values():
            _check_part(part, problems)
        keys = tuple(parts)
        bad = [key for key in keys if not _is_value(key)]
        if bad:
            problems.append(node.mark.problem(f"{shown(bad[0])} is no value of an axis"))
        return _Axis(keys, parts)
    if not isinstance(node.value, list) or not node.value:
        what = f"is {shown(plain(node))}, must be a list of values"
        problems.append(node.mark.problem(what, "or a mapping of names to parts of a config"))
        return _Axis((), None)
    values: list[Any] = []
    for item in node.value:
        value = _value(item, variables)
        if value is not None and _among(value, values):
            problems.append(item.mark.problem(f"names {shown(value)} twice", "keep one"))
        values.append(value)
    return _Axis(tuple(values), None)


def _value(node: Node, variables: Variables) -> Any:
    """Fill in a value of an axis; None where it has a problem."""
    before = len(variables.problems)
    value = variables.fill(node).value
    if len(variables.problems) > before:
        return None
    if not _is_value(value):
        what = f"is {shown(value)}, must be text, a number, true or false"
        variables.problems.append(node.mark.problem(what))
        return None
    return value


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _check_part(part: Node, problems: list[Problem]) -> None:
    if not isinstance(part.value, dict):
        what = f"is {shown(plain(part))}, must be a mapping, a part of a config"
        problems.append(part.mark.problem(what, "`{}` changes nothing"))
        return
    for key in _NOT_IN_PARTS:
        if key in part.value:
            what = f"'{key}' cannot stand in a part of a config"
            problems.append(part.value[key].mark.problem(what, "write it at the top"))


def _combination(axes: Mapping[str, _Axis], values: dict[str, Any]) -> Combination:
    parts = [axis.parts[values[name]] for name, axis in axes.items() if axis.parts is not None]
    return Combination(values, parts)


# Leaving out and adding


def _entries(node: Node | None, problems: list[Problem]) -> Iterator[Node]:
    """Yield the mappings of `exclude` or `include`."""
    if node is None:
        return
    if not isinstance(node.value, list):
        what = f"is {shown(plain(node))}, must be a list of mappings"
        problems.append(node.mark.problem(what, "write `- {axis: value}`"))
        return
    for item in node.value:
        if isinstance(item.value, dict):
            yield item
        else:
            what = f"is {shown(plain(item))}, must be a mapping"
            problems.append(item.mark.problem(what, "write `- {axis: value}`"))


def _chosen(
    entry: Node, axes: Mapping[str, _Axis], variables: Variables, but: tuple[str, ...] = ()
) -> dict[str, Any] | None:
    """Return the values that an entry names; None where something is wrong with them."""
    before = len(variables.problems)
    chosen: dict[str, Any] = {}
    for name, node in entry.value.items():
        if name in but:
            continue
        if name not in axes:
            what = f"the matrix has no axis {shown(name)}"
            variables.problems.append(
                node.mark.problem(what, did_you_mean(str(name), [*axes, *but]))
            )
            continue
        chosen[name] = _value(node, variables)
    return chosen if len(variables.problems) == before else None


def _without(
    found: list[Combination], entry: Node, axes: Mapping[str, _Axis], variables: Variables
) -> list[Combination]:
    chosen = _chosen(entry, axes, variables)
    if chosen is None:
        return found
    left = [each for each in found if not _matches(each, chosen)]
    if len(left) == len(found):
        _no_match(entry.mark, chosen, axes, variables.problems)
    return left


def _include(
    found: list[Combination], entry: Node, axes: Mapping[str, _Axis], variables: Variables
) -> None:
    """Add to the combinations that an entry matches, else make it one."""
    problems = variables.problems
    chosen = _chosen(entry, axes, variables, but=(_PART,))
    part = entry.value.get(_PART)
    if part is not None:
        _check_part(part, problems)
    if chosen is None:
        return
    matching = [each for each in found if _matches(each, chosen)]
    if matching and part is None:
        what = f"{matching[0]} is there already"
        problems.append(entry.mark.problem(what, "add a `config:` to it, or leave it out"))
    elif matching and part is not None:
        for each in matching:
            each.parts.append(part)
    elif chosen.keys() != axes.keys() or not _known(chosen, axes):
        _no_match(entry.mark, chosen, axes, problems)
    else:
        added = _combination(axes, {name: chosen[name] for name in axes})
        found.append(added)
        if part is not None:
            added.parts.append(part)


def _known(chosen: Mapping[str, Any], axes: Mapping[str, _Axis]) -> bool:
    """Return whether every axis with parts has one for its value."""
    return all(axes[n].parts is None or _among(v, axes[n].values) for n, v in chosen.items())


def _no_match(
    mark: Mark, chosen: Mapping[str, Any], axes: Mapping[str, _Axis], problems: list[Problem]
) -> None:
    for name, value in chosen.items():
        if not _among(value, axes[name].values):
            what = f"axis '{name}' has no value {shown(value)}"
            known = did_you_mean(spelled(value), map(spelled, axes[name].values))
            problems.append(mark.problem(what, known))
            return
    problems.append(mark.problem("matches no combination", "leave it out"))


def _matches(each: Combination, chosen: Mapping[str, Any]) -> bool:
    return all(_same(each.values[name], value) for name, value in chosen.items())


def _among(value: Any, values: Any) -> bool:
    return any(_same(value, each) for each in values)


def _same(one: Any, other: Any) -> bool:
    """Compare values with their types: 1 is neither true nor 1.0."""
    return type(one) is type(other) and one == other


# Names


def names(
    found: list[Combination], stem: str, mark: Mark, template: Node | None, variables: Variables
) -> dict[str, Combination]:
    """Return the combinations by the names of their packages.

    What is wrong with the names, at `mark`, is added to the problems of the variables.
    """
    mark = template.mark if template else mark
    named: dict[str, Combination] = {}
    for each in found:
        if template is None:
            name: Any = "-".join([stem, *map(spelled, each.values.values())])
        else:
            its = variables.for_package(each.values)
            name = its.fill(Node(template.value, template.mark)).value
            if its.problems:
                variables.problems += its.problems
                break
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            what = f"cannot name a package: {shown(name)} {RULES[NAME_PATTERN]}"
            known = "" if template else "write `package:` to name them in another way"
            variables.problems.append(mark.problem(what, known))
        elif name in named:
            what = f"'{name}' is the name of two packages: {named[name]}; and {each}"
            variables.problems.append(mark.problem(what, "name every axis in it"))
        else:
            named[name] = each
    return named
