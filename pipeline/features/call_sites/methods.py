"""The methods of a package as apps call them, read from its manifest.

Values are flat, in the order in which the runtime takes inputs and returns outputs.

An argument is a mapping: `name` in Python notation (`states[0]`); `kind`; `text`, a description
with dtype and sizes; and for a tensor its `dtype` and `sizes`. Each size is `(least, most,
expression)`: `most` is None if unlimited; the expression is a symbol, such as `d0`, shared by equal
sizes, or a list of a function and its operands, or "". Kinds are `tensor`, `int`, `float`, `bool`,
`str`, and `fixed`, whose `value` the export fixed; the kind of anything else is "".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pipeline.report.formatting import size_range

Json = Mapping[str, Any]
Size: TypeAlias = tuple[int, int | None, Any]


def describe_methods(manifest: Json) -> list[dict[str, Any]]:
    """Return a manifest's methods in the order of their names.

    Each has `name`, `inputs` and `outputs`, which are lists of arguments. Constant methods have no
    inputs and one output, `value`.
    """
    methods = []
    for name, method in sorted(manifest["methods"].items()):
        signature = method.get("signature")
        if signature:
            methods.append(_describe_program(name, signature))
    for name, value in sorted(manifest["constant_methods"].items()):
        kind = type(value).__name__
        if kind in ("bool", "float", "int", "str"):
            output = {"name": "value", "kind": kind, "text": kind}
            methods.append(
                {"name": name, "inputs": [], "outputs": [output], "constant": True}
            )
    return methods


def _describe_program(name: str, signature: Json) -> dict[str, Any]:
    inputs = list[dict[str, Any]]()
    for _, tree in (*signature["args"], *signature["kwargs"]):
        inputs += map(_describe_leaf, _iter_leaves(tree))
    outputs = []
    for place in signature["changes"]:  # the runtime returns these first
        outputs.append({**inputs[place], "name": f"{inputs[place]['name']}_changed"})
    outputs += map(_describe_leaf, _iter_leaves(signature["outputs"]))
    return {"name": name, "inputs": inputs, "outputs": outputs, "constant": False}


def _iter_leaves(tree: Any) -> Iterator[Json]:
    """Yield the leaves of a tree, whose containers are lists that begin with their kind."""
    if isinstance(tree, Mapping):
        yield tree
    elif isinstance(tree, list):
        for member in tree:
            yield from _iter_leaves(member)


def _describe_leaf(leaf: Json) -> dict[str, Any]:
    name = leaf["name"]
    if "dtype" in leaf:
        sizes = [_describe_size(size) for size in leaf["sizes"]]
        text = f"{leaf['dtype']} [{', '.join(map(_format_size, sizes))}]"
        # Apps pass contiguous tensors, and the runtime refuses any other dim order.
        is_laid_out = leaf.get("order", []) == sorted(leaf.get("order", []))
        return {
            "name": name,
            "kind": "tensor" if is_laid_out else "",
            "text": text if is_laid_out else f"{text}, not contiguous",
            "dtype": leaf["dtype"],
            "sizes": sizes,
        }
    if "int" in leaf:
        size = _describe_size(leaf["int"])
        return {
            "name": name,
            "kind": "int",
            "text": f"int {_format_size(size)}",
            "sizes": [size],
        }
    if "scalar" in leaf:
        return {"name": name, "kind": leaf["scalar"], "text": leaf["scalar"]}
    if "float" in leaf or "value" in leaf:
        # Hexadecimal is exact, and has a form for infinities and NaN, which JSON lacks.
        value = float.fromhex(leaf["float"]) if "float" in leaf else leaf["value"]
        return {
            "name": name,
            "kind": "fixed",
            "text": f"always {value!r}",
            "value": value,
        }
    return {"name": name, "kind": "", "text": "of unknown form"}


def _describe_size(size: Any) -> Size:
    if not isinstance(size, Mapping):
        return size, size, ""
    return size.get("min") or 0, size.get("max"), size.get("size") or ""


def _format_size(size: Size) -> str:
    least, most, expression = size
    limits = size_range((least, most))
    return f"{expression}: {limits}" if is_symbol(expression) else limits


def is_symbol(expression: Any) -> bool:
    """Return whether a size is a plain symbol, not computed from other sizes."""
    return isinstance(expression, str) and expression != ""


def find_symbols(method: Json) -> list[str]:
    """Return the symbols of the sizes of a method's inputs, in the order of their first use."""
    symbols: dict[str, None] = {}
    for argument in method["inputs"]:
        symbols |= {
            symbol: None for _, _, symbol in argument.get("sizes", ()) if symbol
        }
    return list(symbols)


def find_places(method: Json) -> list[int]:
    """Return the positions of the outputs that an app gets: those that the export didn't fix."""
    places = []
    for place, output in enumerate(method["outputs"]):
        if output["kind"] != "fixed":
            places.append(place)
    return places


def find_obstacles(
    methods: list[dict[str, Any]], dtypes: Mapping[str, str]
) -> Iterator[str]:
    """Yield the reasons why methods can't be called in a language that supports these dtypes."""
    for method in methods:
        for argument in (*method["inputs"], *method["outputs"]):
            where = f"{method['name']}: {argument['name']}"
            if not argument["kind"]:
                yield f"{where} is {argument['text']}, which no call site makes"
            elif argument.get("dtype", "") not in ("", *dtypes):
                yield f"{where} is {argument['dtype']}; known: {', '.join(dtypes)}"
            elif not _can_be_passed(argument.get("value")):
                yield f"{where} is {argument['text']}, which no call site passes"


def _can_be_passed(value: Any) -> bool:
    """Return whether every language can write a value that an export fixed."""
    if isinstance(value, float):
        # Not every language has a literal for infinities and NaN.
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int)
