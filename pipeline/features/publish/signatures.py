"""Signatures of methods as manifests have them: the leaves of inputs and outputs, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.report.formatting import size_range

Json = Mapping[str, Any]
_CONTAINERS = ("dict", "list", "tuple")
_OPERATORS = {"Add": "+", "FloorDiv": "//", "Mod": "%", "Mul": "*", "Pow": "**"}


def iter_inputs(signature: Json) -> Iterator[Json]:
    """Yield the leaves of a method's inputs, in the order in which they are passed."""
    for _, tree in (*signature["args"], *signature["kwargs"]):
        yield from iter_leaves(tree)


def iter_outputs(signature: Json) -> Iterator[Json]:
    """Yield the leaves of a method's outputs, without the inputs that it changes."""
    yield from iter_leaves(signature["outputs"])


def iter_leaves(tree: Any) -> Iterator[Json]:
    """Yield the leaves of a tree, whose containers are lists that begin with their kind."""
    if isinstance(tree, Mapping):
        yield tree
        return
    kind, *members = tree if isinstance(tree, list) and tree else [""]
    for member in members:
        if kind == "dict":  # members are pairs of a key and a tree
            yield from iter_leaves(member[1])
        elif kind in _CONTAINERS:
            yield from iter_leaves(member)


def describe_leaf(leaf: Json) -> tuple[str, str]:
    """Return the dtype of a leaf, and its sizes or its value, as text."""
    if "dtype" in leaf:
        sizes = ", ".join(map(describe_size, leaf["sizes"]))
        return leaf["dtype"], f"\\[{sizes}\\]"
    if "int" in leaf:
        return "int", describe_size(leaf["int"])
    if "scalar" in leaf:
        return leaf["scalar"], "computed from sizes or values"
    if "float" in leaf:
        return "float", f"always {float.fromhex(leaf['float'])}"
    if "value" in leaf:
        return type(leaf["value"]).__name__, f"always `{json.dumps(leaf['value'])}`"
    return "", "not known"


def describe_size(size: Any) -> str:
    """Return a size as text: a number, a range, or an expression.

    If the size has a name, which all sizes equal to it share, the name precedes the range.
    """
    if not isinstance(size, Mapping):
        return str(size)
    limits = size_range((size.get("min") or 0, size.get("max")))
    expression = size.get("size")
    if isinstance(expression, str):
        return f"{expression}: {limits}"
    if expression is None:
        return limits
    return format_size(expression)


def format_size(expression: Any) -> str:
    """Return a computed size as a Python expression.

    A function without a Python operator is written as a call.
    """
    if not isinstance(expression, list):
        return str(expression)
    function, *operands = expression
    parts = [format_size(operand) for operand in operands]
    if function in _OPERATORS:
        parts = [f"({part})" if " " in part else part for part in parts]
        return f" {_OPERATORS[function]} ".join(parts)
    return f"{function}({', '.join(parts)})"
