"""Method signatures as JSON, for manifests. Nothing is evaluated to read one back."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch

from pipeline.program.argument_specs import (
    FUNCTIONS,
    Argument,
    ConstantSpec,
    Extent,
    IntSpec,
    Leaf,
    TensorSpec,
    size_symbol,
)
from pipeline.program.inputs import decode_tree, encode_tree
from pipeline.program.method_spec import MethodSpec
from pipeline.store.errors import PipelineError

Json = Any


def spec_to_json(spec: MethodSpec) -> Json:
    """Return a signature as strict JSON."""

    def encode(tree: Any) -> Json:
        return encode_tree(tree, lambda a: {"name": a.name, **_leaf_to_json(a.value)})

    return {
        "args": [[name, encode(tree)] for name, tree in spec.args],
        "kwargs": [[name, encode(tree)] for name, tree in spec.kwargs],
        "outputs": encode(spec.outputs),
        "changes": list(spec.changes),
    }


def spec_from_json(data: Json) -> MethodSpec:
    """Return the signature that `spec_to_json` wrote. Raises PipelineError for anything else."""

    def decode(tree: Json) -> Any:
        return decode_tree(tree, lambda a: Argument(str(a["name"]), _leaf_from_json(a)))

    try:
        return MethodSpec(
            tuple((str(name), decode(tree)) for name, tree in data["args"]),
            tuple((str(name), decode(tree)) for name, tree in data["kwargs"]),
            decode(data["outputs"]),
            tuple(map(int, data["changes"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(f"a signature that cannot be read ({error!r})") from error


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
    return {"float": value.hex()} if isinstance(value, float) else {"value": value}


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
