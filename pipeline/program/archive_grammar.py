"""Checks an archive's JSON against the table in `archive_schema.py`, each string by its grammar.

torch reads these strings in surprising ways: it pastes the names of values and arguments into
source code that it runs (`torch/fx/graph.py`), looks operators up as attributes of the module
`torch` (`torch.os.system` is one), and evaluates sizes. So each kind of string has a grammar here,
and an archive that breaks one is refused before torch sees it. Trees of inputs name classes;
`containers.py` imports none of them. This module doesn't import torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from keyword import iskeyword
from typing import Any

from pipeline.program.archive_operators import find_operator_fault
from pipeline.program.archive_schema import ENUMS, SCHEMA
from pipeline.program.size_expressions import (
    check_size_expression,
    is_backed_symbol,
    is_symbol,
)
from pipeline.store.names import is_file_name

# Raises `_WrongError`.
Check = Callable[[Any], object]

_LONGEST_NAME = 1000
_DUNDER = re.compile(r"__\w*__")
_DEVICE = re.compile(r"[a-z][a-z0-9_]{0,31}")
# The name of a class, which torch uses in keys and messages.
_LITERAL = re.compile(r"[^\x00-\x1f\x7f\"'\\\ud800-\udfff]{0,999}")
# One part of a qualified name, which torch pastes into source code between double quotes.
_PART = re.compile(r"[^\x00-\x1f\x7f\"\ud800-\udfff]{1,999}(?<!\\)")


def check_document(cls: str, value: Any) -> None:
    """Raise ValueError if a JSON value doesn't match a class of the schema, and say where."""
    try:
        _make_check(cls)(value)
    except _WrongError as error:
        place = "".join(reversed(error.place)).removeprefix(".")
        raise ValueError(f"{place}: {error.what}" if place else error.what) from None


class _WrongError(Exception):
    """A mismatch with the schema; callers append the parts of its path as the error passes them."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.place: list[str] = []


@cache
def _make_check(kind: str) -> Check:
    """Return the function that checks values of a kind, found once: programs have many values."""
    if kind[-1] == "?":
        check = _make_check(kind[:-1])
        return lambda value: value is None or check(value)
    if kind[0] == "[":
        return partial(_check_list, _make_check(kind[1:-1]))
    if kind[0] == "{":
        key_kind, _, value_kind = kind[1:-1].partition(":")
        return partial(_check_mapping, _make_check(key_kind), _make_check(value_kind))
    if kind in ENUMS:
        return partial(_check_enum, kind)
    if f"|{kind}" in SCHEMA:
        return partial(_check_union, SCHEMA[f"|{kind}"])
    return _GRAMMARS.get(kind) or _record(SCHEMA[kind])


def _check_list(check: Check, value: Any) -> None:
    _expect(value, list, "a list")
    for number, element in enumerate(value):
        _check_at(number, check, element)


def _check_mapping(check_key: Check, check: Check, value: Any) -> None:
    _expect(value, dict, "a mapping")
    for key, element in value.items():
        check_key(key)
        _check_at(key, check, element)


def _check_at(place: str | int, check: Check, value: Any) -> None:
    try:
        check(value)
    except _WrongError as error:
        error.place.append(f"[{_short(place)}]")
        raise


def _check_enum(kind: str, value: Any) -> None:
    if type(value) is not int or value not in ENUMS[kind]:
        raise _WrongError(f"is {_short(value)}, no {kind}")


def _check_union(fields: Mapping[str, str], value: Any) -> None:
    _expect(value, dict, "a mapping")
    if len(value) != 1 or not value.keys() <= fields.keys():
        raise _WrongError(
            f"has {_short(list(value))}, must have one of {', '.join(fields)}"
        )
    for name, member in value.items():
        try:
            _make_check(fields[name])(member)
        except _WrongError as error:
            error.place.append(f".{name}")
            raise


def _record(fields: Mapping[str, str]) -> Check:
    """Return the check of a record's fields.

    Unknown fields are ignored, as in torch: newer minor versions add some.
    """
    checks: list[tuple[str, bool, Check]] = []

    def check_record(value: Any) -> None:
        nonlocal checks
        _expect(value, dict, "a mapping")
        # Made at the first value, since records contain each other.
        checks = checks or [
            (name.removesuffix("?"), name[-1] == "?", _make_check(kind))
            for name, kind in fields.items()
        ]
        for name, is_optional, check in checks:
            if name in value:
                try:  # not `_check_at`, whose calls would take a tenth of the time
                    check(value[name])
                except _WrongError as error:
                    error.place.append(f".{name}")
                    raise
            elif not is_optional:
                raise _WrongError(f"has no '{name}'")

    return check_record


def _expect(value: Any, kind: type, words: str) -> None:
    if type(value) is not kind:
        raise _WrongError(f"is {_short(value)}, must be {words}")


def _short(value: Any) -> str:
    """Return a value as a short text for a one-line message."""
    if isinstance(value, (str, int, float, type(None))):
        text = ascii(value)
    else:
        text = json.dumps(value)
    if len(text) <= 80:
        return text
    return f"{text[:60]}... ({len(text)} characters)"


# Grammars


def _text(value: Any) -> None:
    _expect(value, str, "a text")
    if not value.isascii() and re.search(r"[\ud800-\udfff]", value):
        raise _WrongError(f"is {_short(value)}, a lone surrogate")


def _literal(value: Any) -> None:
    _expect(value, str, "a text")
    if not _LITERAL.fullmatch(value):
        raise _WrongError(
            f"is {_short(value)}, must be one line without quotes and backslashes"
        )


def _int(value: Any) -> None:
    _expect(value, int, "an integer")
    if not -(1 << 63) <= value < 1 << 64:
        raise _WrongError("is an integer of more than 64 bits")


def _float(value: Any) -> None:
    # torch writes infinity as the string `Infinity`, and may write a float without a fraction as
    # an integer.
    if type(value) not in (int, float) and value not in (
        "Infinity",
        "-Infinity",
        "NaN",
    ):
        raise _WrongError(f"is {_short(value)}, must be a number")
    if type(value) is int:
        _int(value)


def _name(value: Any) -> None:
    _expect(value, str, "a name")
    if not value.isidentifier() or iskeyword(value) or len(value) > _LONGEST_NAME:
        raise _WrongError(
            f"is {_short(value)}, must be a name of letters, digits and underscores"
        )


def _parameter(value: Any) -> None:
    """Check the name of an operator's argument, which is "" if the argument is positional."""
    if value != "" and not (isinstance(value, str) and iskeyword(value)):
        _name(value)


def _path(value: Any) -> None:
    """Check the qualified name of a module or tensor, which is "" for the root module."""
    _expect(value, str, "a qualified name")
    for part in value.split(".") if value else ():
        if not _PART.fullmatch(part) or _DUNDER.fullmatch(part):
            raise _WrongError(
                f"is {_short(value)}, not a qualified name of a module or tensor; rename it, "
                "without double quotes, a final backslash, or `__` on both sides"
            )


def _device(value: Any) -> None:
    _expect(value, str, "a device")
    if not _DEVICE.fullmatch(value):
        raise _WrongError(f"is {_short(value)}, must be a device")


def _file(value: Any) -> None:
    if not is_file_name(value):
        raise _WrongError(f"is {_short(value)}, must be a plain file name")


def _object(value: Any) -> None:
    raise _WrongError(
        "is a custom object, which would be unpickled; export plain tensors"
    )


def _size(value: Any) -> None:
    _expect(value, str, "a size expression")
    try:
        check_size_expression(value)
    except ValueError as error:
        raise _WrongError(
            f"is {_short(value)}, not a size expression: it {error}"
        ) from None


def _range(value: Any) -> None:
    """Check the key of a range: a symbol, or the expression of a derived dimension (`2*s69`)."""
    if not (isinstance(value, str) and is_symbol(value)):
        _size(value)


def _operator(value: Any) -> None:
    _expect(value, str, "an operator")
    if fault := find_operator_fault(value):
        raise _WrongError(f"is {_short(value)}, {fault}")


# Trees of arguments (torch/utils/_pytree.py)

# torch's placeholders for the names of classes that were registered without one.
_UNNAMED = frozenset({"", "NO_SERIALIZED_TYPE_NAME_FOUND"})
_CALL = ["builtins.tuple", "builtins.tuple", "builtins.dict"]


def _tree(value: Any) -> None:
    _check_tree(_parse_tree(value))


def _in_tree(value: Any) -> None:
    """Check the tree of a call's arguments, whose keyword names torch pastes into source code."""
    tree = _parse_tree(value)
    _check_tree(tree)
    children = tree["children_spec"]
    if [node["type"] for node in (tree, *children)] != _CALL:
        raise _WrongError(
            "is not the tree of a call, which is a tuple of a tuple and a dict"
        )
    _make_check("[name]")(json.loads(children[1]["context"]))


def _parse_tree(value: Any) -> Any:
    _expect(value, str, "a tree")
    try:
        protocol, tree = json.loads(value)
    except (ValueError, TypeError):
        raise _WrongError(f"is {_short(value)}, must be a tree") from None
    if protocol != 1:
        raise _WrongError(f"is a tree of protocol {_short(protocol)}, must be 1")
    return tree


def _check_tree(tree: Any) -> None:
    _expect(tree, dict, "a tree")
    if not {"type", "context", "children_spec"} <= tree.keys():
        raise _WrongError("is a tree without type, context or children")
    kind = tree["type"]
    context = tree["context"]
    _make_check("literal?")(kind)
    if kind in _UNNAMED:
        raise _WrongError(f"is a tree of {_short(kind)}, which names no class")
    _expect(tree["children_spec"], list, "a list of trees")
    _check_context(kind, context)
    for child in tree["children_spec"]:
        _check_tree(child)


def _check_context(kind: str | None, context: Any) -> None:
    """Check the context of a container: a dict's keys, or whatever text its class writes there."""
    if kind == "collections.defaultdict":
        _expect(context, dict, "a mapping")
        for part in ("default_factory_module", "default_factory_name"):
            _literal(context.get(part))
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            return _literal(context)  # for example a namedtuple's context, its name
    _check_keys(context)


def _check_keys(value: Any) -> None:
    """Check the keys of a dict, or the JSON that a class writes in their place."""
    if isinstance(value, dict):
        if "__enum__" in value:
            _literal(value.get("fqn"))
            _name(value.get("name"))
        value = [*value, *value.values()]
    if isinstance(value, list):
        for element in value:
            _check_keys(element)
    elif isinstance(value, str):
        _text(value)


def _place(value: Any) -> None:
    if not re.fullmatch(r"[0-9]{1,3}", value):
        raise _WrongError(f"is {_short(value)}, must be the position of a size")


def _symbol(value: Any) -> None:
    if not (isinstance(value, str) and is_backed_symbol(value)):
        raise _WrongError(f"is {_short(value)}, must be the symbol of a size")


_GRAMMARS: dict[str, Check] = {
    "bool": lambda value: _expect(value, bool, "true or false"),
    "device": _device,
    "file": _file,
    "float": _float,
    "in_tree": _in_tree,
    "literal": _literal,
    "int": _int,
    "name": _name,
    "object": _object,
    "operator": _operator,
    "parameter": _parameter,
    "path": _path,
    "place": _place,
    "range": _range,
    "size": _size,
    "symbol": _symbol,
    "text": _text,
    "tree": _tree,
}
