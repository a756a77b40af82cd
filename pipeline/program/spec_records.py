"""The signature of a method as JSON, for manifests. Nothing is evaluated to read one back."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch

from pipeline.program.method_spec import (
    FUNCTIONS,
    ConstantSpec,
    Extent,
    IntSpec,
    Leaf,
    MethodSpec,
    TensorSpec,
    size_symbol,
)
from pipeline.program.signature import Argument
from pipeline.store.errors import PipelineError

Json = Any
_FLOATS = ("inf", "-inf", "nan")


def spec_to_json(spec: MethodSpec) -> Json:
    """Strict JSON."""
    return {
        "args": [[name, _tree_to_json(tree)] for name, tree in spec.args],
        "kwargs": [[name, _tree_to_json(tree)] for name, tree in spec.kwargs],
        "outputs": _tree_to_json(spec.outputs),
        "changes": list(spec.changes),
    }


def spec_from_json(data: Json) -> MethodSpec:
    """The inverse of `spec_to_json`. Raises PipelineError for anything else."""
    try:
        return MethodSpec(
            tuple((str(name), _tree_from_json(tree)) for name, tree in data["args"]),
            tuple((str(name), _tree_from_json(tree)) for name, tree in data["kwargs"]),
            _tree_from_json(data["outputs"]),
            tuple(map(int, data["changes"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(f"a signature that cannot be read ({error!r})") from error


def _tree_to_json(tree: Any) -> Json:
    if isinstance(tree, Argument):
        return {"name": tree.name, **_leaf_to_json(tree.value)}
    if isinstance(tree, dict):
        return ["dict", *([key, _tree_to_json(value)] for key, value in tree.items())]
    return ["list" if isinstance(tree, list) else "tuple", *map(_tree_to_json, tree)]


def _tree_from_json(data: Json) -> Any:
    if isinstance(data, dict):
        return Argument(str(data["name"]), _leaf_from_json(data))
    kind, *members = data
    if kind == "dict":
        return {key: _tree_from_json(value) for key, value in members}
    return {"list": list, "tuple": tuple}[kind](map(_tree_from_json, members))


def _leaf_to_json(leaf: Leaf) -> Json:
    if isinstance(leaf, TensorSpec):
        return {
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "sizes": [_extent_to_json(extent) for extent in leaf.sizes],
            "order": list(leaf.order),
        }
    if isinstance(leaf, IntSpec):
        return {"int": _extent_to_json(leaf.extent)}
    value = leaf.value
    if isinstance(value, float):
        return {"float": value.hex() if str(value) not in _FLOATS else str(value)}
    return {"value": value}


def _leaf_from_json(data: Json) -> Leaf:
    if "dtype" in data:
        dtype = getattr(torch, data["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"no dtype {data['dtype']!r}")
        sizes = tuple(_extent_from_json(size) for size in data["sizes"])
        return TensorSpec(dtype, sizes, tuple(map(int, data["order"])))
    if "int" in data:
        return IntSpec(_extent_from_json(data["int"]))
    return ConstantSpec(float.fromhex(data["float"]) if "float" in data else data["value"])


def _extent_to_json(extent: Extent) -> Json:
    if extent.expression is not None and extent.expression.is_Integer:
        return int(extent.expression)
    expr = None if extent.expression is None else _expression_to_json(extent.expression)
    return {"size": expr, "min": extent.least, "max": extent.greatest}


def _extent_from_json(data: Json) -> Extent:
    if isinstance(data, int):
        return Extent(sympy.Integer(data), data, data)
    expr = None if data["size"] is None else _expression_from_json(data["size"])
    return Extent(expr, int(data["min"]), None if data["max"] is None else int(data["max"]))


def _expression_to_json(expr: sympy.Expr) -> Json:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return str(expr)
    if expr.is_Rational:
        return ["Rational", int(expr.p), int(expr.q)]
    return [type(expr).__name__, *map(_expression_to_json, expr.args)]


def _expression_from_json(data: Json) -> sympy.Expr:
    if isinstance(data, int):
        return sympy.Integer(data)
    if isinstance(data, str):
        if not re.fullmatch(r"d\d+", data):
            raise ValueError(f"no size is called {data!r}")
        return size_symbol(data)
    name, *args = data
    return FUNCTIONS[name](*map(_expression_from_json, args))
