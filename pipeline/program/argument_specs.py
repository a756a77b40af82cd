"""Records of the leaves of a method's arguments and outputs: their JSON, and checks of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from pipeline.program.inputs import describe_type

_TORCH_FUNCTIONS = (
    "CeilToInt CleanDiv FloorDiv FloorToInt IntTrueDiv Max Min Mod ModularIndexing PythonMod "
    "ToFloat TruncToInt"
)
# What sizes are made of, beside whole numbers and symbols. No other function can stand in a record.
FUNCTIONS: Mapping[str, Callable[..., sympy.Expr]] = {
    **{name: getattr(sympy, name) for name in ("Add", "Mul", "Pow", "Rational")},
    **{name: getattr(functions, name) for name in _TORCH_FUNCTIONS.split()},
}
Json = Any


@dataclass(frozen=True)
class Extent:
    """A size: its expression, None for any, and the least and greatest value that it may have."""

    expression: sympy.Expr | None
    least: int = 0
    greatest: int | None = None


@dataclass(frozen=True)
class TensorSpec:
    """A tensor; `order` has its dimensions from the outermost to the innermost.

    Of an output, nothing reads the order.
    """

    dtype: torch.dtype
    sizes: tuple[Extent, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class IntSpec:
    """A whole number that may differ from call to call."""

    extent: Extent


@dataclass(frozen=True)
class ScalarSpec:
    """An output that is computed from sizes or values: `kind` is "float" or "bool"."""

    kind: str


@dataclass(frozen=True)
class ConstantSpec:
    """A value that the export fixed."""

    value: Any


Leaf = TensorSpec | IntSpec | ScalarSpec | ConstantSpec
_SCALARS: Mapping[type, str] = {torch.SymFloat: "float", torch.SymBool: "bool"}


@dataclass(frozen=True)
class Argument:
    """A leaf of a signature. `name` is what a person writes: `states[0]['key']`.

    `value` is a Leaf, or None where nothing is known of it; in a program's own signature it is a
    fake tensor, a SymInt, or the constant that the program was exported with.
    """

    name: str
    value: Any


def make_leaf(
    value: Any, make_extent: Callable[[int | torch.SymInt], Extent], ordered: bool = True
) -> Leaf:
    """Make the record of a fake tensor, a symbolic number or a constant."""
    if isinstance(value, torch.Tensor):
        order = value.dim_order() if ordered else range(value.ndim)
        return TensorSpec(value.dtype, tuple(map(make_extent, value.shape)), tuple(order))
    if type(value) in _SCALARS:
        return ScalarSpec(_SCALARS[type(value)])
    return IntSpec(make_extent(value)) if isinstance(value, torch.SymInt) else ConstantSpec(value)


# Checking


def check_values(pairs: Sequence[tuple[Argument, Any]]) -> list[str]:
    """Return what is wrong with the values of arguments, their sizes taken together."""
    wrong = [f"argument '{a.name}': {m}" for a, given in pairs for m in check_leaf(a.value, given)]
    return [*wrong, *_check_sizes([*iter_sizes(pairs)])]


def check_leaf(leaf: Leaf | None, given: Any) -> Iterator[str]:
    """Yield what is wrong with one value, apart from its sizes."""
    if isinstance(leaf, TensorSpec):
        if not isinstance(given, torch.Tensor):
            yield f"{describe_type(given)}, must be a tensor"
            return
        if given.dtype != leaf.dtype:
            yield f"dtype {_dtype_name(given.dtype)}, must be {_dtype_name(leaf.dtype)}"
        if given.ndim != len(leaf.sizes):
            yield f"rank {given.ndim}, must be {len(leaf.sizes)}"
    elif isinstance(leaf, IntSpec):
        if type(given) is not int:
            yield f"{describe_type(given)}, must be an int"
    elif isinstance(leaf, ConstantSpec) and not _is_same(given, leaf.value):
        shown = describe_type(given) if isinstance(given, torch.Tensor) else repr(given)
        yield f"{shown}, must be {leaf.value!r}, the value that the program was exported with"


def _is_same(given: Any, wanted: Any) -> bool:
    # True equals 1, and not a number equals nothing.
    both_nan = isinstance(given, float) and given != given and wanted != wanted
    return type(given) is type(wanted) and (both_nan or bool(given == wanted))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class GivenSize:
    """A size, or a dynamic int, that a call gives for an extent. `shown` is for messages."""

    shown: str
    extent: Extent
    given: int

    @property
    def expression(self) -> sympy.Expr:
        """The extent's expression; for an extent without one, a symbol that no other has."""
        known = self.extent.expression
        return size_symbol(f"any_{id(self.extent)}") if known is None else known


def iter_sizes(pairs: Iterable[tuple[Argument, Any]]) -> Iterator[GivenSize]:
    """Yield the sizes and dynamic ints of values, each with its extent in the signature."""
    for argument, given in pairs:
        leaf, shown = argument.value, f"argument '{argument.name}': "
        if isinstance(leaf, IntSpec) and type(given) is int:
            yield GivenSize(f"{shown}{given}", leaf.extent, given)
        elif isinstance(leaf, TensorSpec) and isinstance(given, torch.Tensor):
            # A wrong rank is a mistake of its own, and leaves no sizes to compare.
            for dimension, extent in enumerate(leaf.sizes if given.ndim == len(leaf.sizes) else ()):
                size = given.shape[dimension]
                yield GivenSize(f"{shown}size {size} at dimension {dimension}", extent, size)


def _check_sizes(sizes: Sequence[GivenSize]) -> Iterator[str]:
    """Yield where sizes do not fit together, or are beyond the limits of their extents."""
    bound = bind_symbols([(size.expression, size.given) for size in sizes])
    for size in sizes:
        value = size.expression.xreplace(bound)
        least, greatest = size.extent.least, size.extent.greatest
        if value.is_Integer and int(value) != size.given:
            names = sorted(f"{s} = {bound[s]}" for s in size.expression.free_symbols)
            why = f" ({size.expression}, where {', '.join(names)})" if names else ""
            yield f"{size.shown}, must be {value}{why}"
        elif len(value.free_symbols) == 1 and value.is_polynomial():
            yield f"{size.shown}, must be {value} for a whole number"
        elif size.given < least or (greatest is not None and size.given > greatest):
            limit = "" if greatest is None else f" and at most {greatest}"
            yield f"{size.shown}, must be at least {least}{limit}"


def size_symbol(name: str) -> sympy.Symbol:
    """Return a symbol of sizes; equal where names are."""
    return sympy.Symbol(name, integer=True)


def bind_symbols(sizes: Sequence[tuple[sympy.Expr, int]]) -> dict[sympy.Symbol, sympy.Integer]:
    """Solve for the symbols: where one stands alone, then where it is the only unknown."""
    alone = [(e, given) for e, given in reversed(sizes) if isinstance(e, sympy.Symbol)]
    bound = {symbol: sympy.Integer(given) for symbol, given in alone}
    for expr, given in sizes:
        unknown = expr.free_symbols - bound.keys()
        if len(unknown) == 1 and expr.is_polynomial(*unknown):
            symbol = unknown.pop()
            solutions = sympy.solve(expr.xreplace(bound) - given, symbol)
            if solutions and solutions[0].is_Integer:
                bound[symbol] = solutions[0]
    return bound


# JSON


def leaf_to_json(leaf: Leaf) -> dict[str, Json]:
    """Return a leaf as strict JSON."""
    if isinstance(leaf, TensorSpec):
        sizes = [_extent_to_json(extent) for extent in leaf.sizes]
        return {"dtype": _dtype_name(leaf.dtype), "sizes": sizes, "order": list(leaf.order)}
    if isinstance(leaf, IntSpec):
        return {"int": _extent_to_json(leaf.extent)}
    if isinstance(leaf, ScalarSpec):
        return {"scalar": leaf.kind}
    value = leaf.value
    return {"float": value.hex()} if isinstance(value, float) else {"value": value}


def leaf_from_json(data: Json) -> Leaf:
    """Return the leaf that `leaf_to_json` wrote. Nothing is evaluated.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else.
    """
    if "dtype" in data:
        dtype = getattr(torch, data["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"no dtype {data['dtype']!r}")
        sizes = tuple(map(_extent_from_json, data["sizes"]))
        return TensorSpec(dtype, sizes, tuple(map(int, data["order"])))
    if "int" in data:
        return IntSpec(_extent_from_json(data["int"]))
    if "scalar" in data:
        return ScalarSpec({"float": "float", "bool": "bool"}[data["scalar"]])
    return ConstantSpec(float.fromhex(data["float"]) if "float" in data else data["value"])


def _extent_to_json(extent: Extent) -> Json:
    size = None if extent.expression is None else _expression_to_json(extent.expression)
    if isinstance(size, int):
        return size
    return {"size": size, "min": extent.least, "max": extent.greatest}


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
