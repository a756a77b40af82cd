"""Describes the leaves of a method's arguments and outputs, and checks values against them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sympy
import torch
from torch.utils._sympy import functions

from pipeline.program.inputs import describe_type

_TORCH_FUNCTIONS = (
    "CeilToInt CleanDiv FloorDiv FloorToInt IntTrueDiv Max Min Mod ModularIndexing PythonMod "
    "ToFloat TruncToInt"
)
# The functions that a size expression may use, besides integers and symbols.
FUNCTIONS: Mapping[str, Callable[..., sympy.Expr]] = {
    **{name: getattr(sympy, name) for name in ("Add", "Mul", "Pow", "Rational")},
    **{name: getattr(functions, name) for name in _TORCH_FUNCTIONS.split()},
}
Json = Any


@dataclass(frozen=True)
class Extent:
    """A size of a tensor, or an integer argument that may differ from call to call.

    Attributes:
        expression: the expression in symbols, or None if any value is allowed.
        least: the least allowed value.
        greatest: the greatest allowed value, or None without a limit.
    """

    expression: sympy.Expr | None
    least: int = 0
    greatest: int | None = None

    @property
    def as_expression(self) -> sympy.Expr:
        """The expression, or a symbol unique to this extent if it has none."""
        if self.expression is None:
            return size_symbol(f"any_{id(self)}")
        return self.expression


@dataclass(frozen=True)
class TensorSpec:
    """A tensor; `order` lists its dimensions from the outermost to the innermost.

    The order of an output is never read.
    """

    dtype: torch.dtype
    sizes: tuple[Extent, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class ConstantSpec:
    """A value that the export fixed as a constant."""

    value: Any


ScalarKind = Literal[
    "float", "bool"
]  # the kind of an output that is computed from sizes or values
Leaf = TensorSpec | Extent | ScalarKind | ConstantSpec
_SCALARS: Mapping[type, ScalarKind] = {torch.SymFloat: "float", torch.SymBool: "bool"}


@dataclass(frozen=True)
class Argument:
    """A leaf of a signature. `name` is the path that a person would write: `states[0]['key']`.

    `value` is a Leaf, or None if nothing is known about it. In the signature of a program in
    memory it is a fake tensor, a SymInt, or the constant that the program was exported with.
    """

    name: str
    value: Any

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The dimensions of a fake tensor, from the outermost to the innermost."""
        return tuple(self.value.dim_order())


def make_leaf(
    value: Any,
    make_extent: Callable[[int | torch.SymInt], Extent],
    ordered: bool = True,
) -> Leaf:
    """Return the leaf that describes a fake tensor, a symbolic number or a constant."""
    if isinstance(value, torch.Tensor):
        order = value.dim_order() if ordered else range(value.ndim)
        return TensorSpec(
            value.dtype,
            tuple(map(make_extent, value.shape)),
            tuple(order),
        )
    if type(value) in _SCALARS:
        return _SCALARS[type(value)]
    if isinstance(value, torch.SymInt):
        return make_extent(value)
    return ConstantSpec(value)


# Checking


def check_values(pairs: Sequence[tuple[Argument, Any]]) -> list[str]:
    """Return the mistakes in the values of all arguments, including sizes that don't agree."""
    mistakes = []
    for argument, value in pairs:
        for mistake in check_leaf(argument.value, value):
            mistakes.append(f"argument '{argument.name}': {mistake}")
    return [*mistakes, *_check_sizes(pairs)]


def check_leaf(leaf: Leaf | None, value: Any) -> Iterator[str]:
    """Yield the mistakes in one value, apart from its sizes."""
    if isinstance(leaf, TensorSpec):
        if not isinstance(value, torch.Tensor):
            yield f"{describe_type(value)}, must be a tensor"
            return
        if value.dtype != leaf.dtype:
            yield f"dtype {_dtype_name(value.dtype)}, must be {_dtype_name(leaf.dtype)}"
        if value.ndim != len(leaf.sizes):
            yield f"rank {value.ndim}, must be {len(leaf.sizes)}"
    elif isinstance(leaf, Extent):
        if type(value) is not int:
            yield f"{describe_type(value)}, must be an int"
    elif isinstance(leaf, ConstantSpec) and not _is_same(value, leaf.value):
        if isinstance(value, torch.Tensor):
            shown = describe_type(value)
        else:
            shown = repr(value)
        yield f"{shown}, must be {leaf.value!r}, the value that the program was exported with"


def _is_same(value: Any, constant: Any) -> bool:
    if type(value) is not type(constant):  # True equals 1
        return False
    # NaN equals nothing, not even itself.
    both_nan = isinstance(value, float) and value != value and constant != constant
    return both_nan or bool(value == constant)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bind_sizes(
    pairs: Iterable[tuple[Argument, Any]],
) -> dict[sympy.Symbol, sympy.Integer]:
    """Return the values of the symbols that can be solved for from the sizes of arguments."""
    sizes = _iter_sizes(pairs)
    return bind_symbols([(extent.as_expression, value) for extent, value, _ in sizes])


def _iter_sizes(
    pairs: Iterable[tuple[Argument, Any]],
) -> Iterator[tuple[Extent, int, str]]:
    """Yield the sizes and dynamic ints of values.

    Each is a tuple of the extent in the signature, the value, and its label in messages.
    """
    for argument, value in pairs:
        leaf = argument.value
        shown = f"argument '{argument.name}': "
        if isinstance(leaf, Extent) and type(value) is int:
            yield leaf, value, f"{shown}{value}"
        elif isinstance(leaf, TensorSpec) and isinstance(value, torch.Tensor):
            # `check_leaf` reports a wrong rank; there are no sizes to compare then.
            if value.ndim != len(leaf.sizes):
                continue
            for dimension, extent in enumerate(leaf.sizes):
                size = value.shape[dimension]
                yield extent, size, f"{shown}size {size} at dimension {dimension}"


def _check_sizes(pairs: Sequence[tuple[Argument, Any]]) -> Iterator[str]:
    """Yield a mistake for each size that contradicts the others or exceeds its limits."""
    bound = bind_sizes(pairs)
    for extent, value, shown in _iter_sizes(pairs):
        expected = extent.as_expression.xreplace(bound)
        greatest = extent.greatest
        is_too_large = greatest is not None and value > greatest
        if expected.is_Integer and int(expected) != value:
            reason = _explain_size(extent.as_expression, bound)
            yield f"{shown}, must be {expected}{reason}"
        elif len(expected.free_symbols) == 1 and expected.is_polynomial():
            yield f"{shown}, must be {expected} for a whole number"
        elif value < extent.least or is_too_large:
            limit = "" if greatest is None else f" and at most {greatest}"
            yield f"{shown}, must be at least {extent.least}{limit}"


def _explain_size(size: sympy.Expr, bound: Mapping[sympy.Symbol, sympy.Integer]) -> str:
    values = sorted(f"{symbol} = {bound[symbol]}" for symbol in size.free_symbols)
    if values:
        return f" ({size}, where {', '.join(values)})"
    return ""


def size_symbol(name: str) -> sympy.Symbol:
    """Return the integer symbol of this name; symbols of the same name are equal."""
    return sympy.Symbol(name, integer=True)


def bind_symbols(
    sizes: Sequence[tuple[sympy.Expr, int]],
) -> dict[sympy.Symbol, sympy.Integer]:
    """Solve for the symbols, given the values of expressions.

    Expressions that are a bare symbol come first, then those with a single unknown.
    """
    bound: dict[sympy.Symbol, sympy.Integer] = {}
    for expr, value in sizes:
        if isinstance(expr, sympy.Symbol):
            bound.setdefault(expr, sympy.Integer(value))
    for expr, value in sizes:
        unknown = expr.free_symbols - bound.keys()
        if len(unknown) == 1 and expr.is_polynomial(*unknown):
            symbol = unknown.pop()
            solutions = sympy.solve(expr.xreplace(bound) - value, symbol)
            if solutions and solutions[0].is_Integer:
                bound[symbol] = solutions[0]
    return bound


# JSON


def leaf_to_json(leaf: Leaf) -> dict[str, Json]:
    """Return a leaf as strict JSON."""
    if isinstance(leaf, TensorSpec):
        sizes = [_extent_to_json(extent) for extent in leaf.sizes]
        return {
            "dtype": _dtype_name(leaf.dtype),
            "sizes": sizes,
            "order": list(leaf.order),
        }
    if isinstance(leaf, Extent):
        return {"int": _extent_to_json(leaf)}
    if isinstance(leaf, str):
        return {"scalar": leaf}
    value = leaf.value
    if isinstance(value, float):
        return {"float": value.hex()}
    return {"value": value}


def _extent_to_json(extent: Extent) -> Json:
    if extent.expression is None:
        size = None
    else:
        size = _expression_to_json(extent.expression)
    if isinstance(size, int):
        return size
    return {"size": size, "min": extent.least, "max": extent.greatest}


def _expression_to_json(expr: sympy.Expr) -> Json:
    if expr.is_Integer:
        return int(expr)
    if expr.is_Symbol:
        return str(expr)
    if expr.is_Rational:
        return ["Rational", int(expr.p), int(expr.q)]
    return [type(expr).__name__, *map(_expression_to_json, expr.args)]
