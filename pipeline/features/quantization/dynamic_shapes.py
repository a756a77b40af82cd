"""Describes the dynamic sizes of a program in the form that `torch.export.export` expects."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.program.signature import bounds, expression, iter_dynamic_sizes, signature


def describe_dynamic_shapes(program: ExportedProgram) -> tuple[Any, ...] | None:
    """Return dynamic sizes for `torch.export.export`, which rediscovers the equal ones."""
    dimensions = _Dimensions(program)
    leaves = [dimensions.find(argument.value) for argument in signature(program)]
    if not any(leaves):
        return None
    values = iter(leaves)

    def nest(spec: pytree.TreeSpec) -> Any:
        if spec.is_leaf():
            return next(values)
        children = [nest(child) for child in spec.children()]
        # torch expects other containers as lists.
        builtin = spec.type in pytree.BUILTIN_TYPES
        if builtin:
            return pytree.SUPPORTED_NODES[spec.type].unflatten_fn(
                children, spec.context
            )
        return children

    args, kwargs = nest(program.call_spec.in_spec)
    return (*args, *kwargs.values())


class _Dimensions:
    """The dynamic sizes of a program's inputs.

    torch rediscovers which of them are equal, but not that one is `2*n` or `48*k - 25` of another
    size, or of a symbol that isn't itself a size. Those are derived from named dimensions, as their
    exporter wrote them.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        sizes = (expression(size) for _, size in iter_dynamic_sizes(signature(program)))
        derived = [size for size in sizes if _is_derived(size)]
        symbols = dict.fromkeys(
            symbol for size in derived for symbol in size.free_symbols
        )
        self._named = {symbol: self._name(symbol) for symbol in symbols}

    def _name(self, symbol: sympy.Symbol) -> Any:
        least, greatest = bounds(self._program, symbol)
        return Dim(str(symbol), min=least, max=greatest)

    def find(self, value: Any) -> Any:
        """Return the dynamic sizes of a fake tensor, by dimension, or None if it has none."""
        if not isinstance(value, torch.Tensor):
            if isinstance(value, torch.SymInt):
                return Dim.AUTO
            return None
        sizes = {n: s for n, s in enumerate(value.shape) if isinstance(s, torch.SymInt)}
        return {
            number: self._make(expression(size)) for number, size in sizes.items()
        } or None

    def _make(self, size: sympy.Expr) -> Any:
        if size in self._named:
            return self._named[size]
        if not _is_derived(size):
            least, greatest = bounds(self._program, size)
            return Dim.AUTO(min=least, max=greatest)
        # `_is_derived` has ensured that there is exactly one.
        (symbol,) = size.free_symbols
        dim = self._named[symbol]
        slope = int(size.diff(symbol))
        offset = int(size.subs(symbol, 0))
        if slope > 1:
            scaled = slope * dim
        else:
            scaled = dim
        if offset:
            return scaled + offset
        return scaled


def _is_derived(size: sympy.Expr) -> bool:
    """Return whether torch could have derived a size from a named dimension: `a*n + b`."""
    if size.is_Symbol or len(size.free_symbols) != 1:
        return False
    slope = size.diff(*size.free_symbols)
    return bool(slope.is_Integer and slope > 0)
