"""Does the arithmetic of dynamic sizes only once, in place of functions of torch's `SymNode`.

Expressions are kept, but never sizes, and only until the lowering ends. `patches.py` installs these
functions if torch's source code is the one that they were written for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.exir import sym_util
from torch._guards import TracingContext
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import (
    _NO_HINT,
    METHOD_TO_OPERATOR,
    SymNode,
    _make_node_magic,
)

_Function = Callable[..., Any]
ARITHMETIC = _make_node_magic  # makes all operations; its source code is checked
BOUNDING = sym_util.eval_upper_bound  # the only caller of the function that it imports
METHODS = ("add", "sub", "mul", "int_floordiv", "eq", "ne", "lt", "le", "gt", "ge")
# The types of hints; the hints of nested tensors are sizes themselves.
_PLAIN = (
    int,
    float,
    bool,
    type(None),
)


def make_expression(original: property) -> property:
    """Return a property that keeps the expression of a size until a symbol is replaced.

    torch asks for it some hundred thousand times, and checks each time whether it is a number.
    """

    def expression(self: Any) -> Any:
        version = self.shape_env and self.shape_env._replacements_version_counter
        if version is None:
            return original.fget(self)  # type: ignore[misc]
        if self._expr_ver != version:
            self._expr_cache, self._expr_ver = original.fget(self), version  # type: ignore[misc]
        return self._expr_cache

    return property(expression)


def make_whole(original: _Function) -> _Function:
    """Return a function that remembers which expressions are numbers.

    torch asks this about every size that it makes.
    """
    numbers: dict[Any, int | None] = {}

    def maybe_as_int(self: SymNode) -> int | None:
        expression = self.expr
        key = expression.__class__, expression
        if key not in numbers:
            numbers[key] = original(self)
        return numbers[key]

    return maybe_as_int


def make_arithmetic(method: str) -> Callable[[_Function], _Function]:
    """Return a patch that keeps the result of an operation on two expressions.

    Each fake tensor of a dynamic shape computes its strides, its length and whether it is
    contiguous.

    Every result is a new size, as in the original: tracing distinguishes sizes by identity, but not
    expressions.
    """
    operator = METHOD_TO_OPERATOR[method]

    def make(original: _Function) -> _Function:
        results: dict[Any, tuple[Any, type, bool]] = {}

        def apply(self: SymNode, operand: SymNode) -> SymNode:
            scope = self.shape_env
            hints = (self._hint, operand._hint)
            if (
                scope is None
                or scope._translation_validation_enabled
                or torch._logging._internal.GET_DTRACE_STRUCTURED
                or not all(hint.__class__ in _PLAIN for hint in hints)
                or get_proxy_mode() is not None
            ):
                return original(self, operand)  # type: ignore[no-any-return]
            expression = self.expr
            operand_expression = operand.expr
            kinds = (
                expression.__class__,
                operand_expression.__class__,
                self.pytype,
                operand.pytype,
            )
            sums = self._optimized_summation, operand._optimized_summation
            key = expression, operand_expression, kinds, sums
            if key not in results:
                result = original(self, operand)
                results[key] = result._expr, result.pytype, result._optimized_summation
                return result  # type: ignore[no-any-return]
            result, kind, is_sum = results[key]
            hint = _NO_HINT if None in hints else kind(operator(*hints))
            return SymNode(result, scope, kind, hint, optimized_summation=is_sum)

        return apply

    return make


def make_bounds(original: _Function) -> _Function:
    """Return a function that keeps the bounds of each expression with the ranges of its symbols.

    Before memory is planned, ExecuTorch asks for the upper bound of each size of each value, and
    most of these have the same few expressions.
    """
    bounds: dict[Any, Any] = {}

    def bound_sympy(expression: Any, ranges: Any) -> Any:
        if TracingContext.try_get() is not None:  # which has ranges, too
            return original(expression, ranges)
        symbols = expression.free_symbols
        key = (
            expression.__class__,
            expression,
            frozenset((symbol, ranges.get(symbol)) for symbol in symbols),
        )
        if key not in bounds:
            bounds[key] = original(expression, ranges)
        return bounds[key]

    return bound_sympy
