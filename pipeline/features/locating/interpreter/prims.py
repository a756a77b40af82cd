"""Implements the ExecuTorch operators that torch lacks: on scalars, sizes and views."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.features.locating.interpreter.slots import RefusalError

# executorch_prim: kernels/prim_ops/register_prim_ops.cpp. They take scalars and return a scalar.
_LIKE_PYTHON = (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "eq", "gt", "lt", "ge", "le"
)  # fmt: skip
PRIMS: Mapping[str, Callable[..., Any]] = {
    **{f"{name}.Scalar": getattr(operator, name) for name in _LIKE_PYTHON},
    "ceil.Scalar": math.ceil,
    "round.Scalar": round,
    "trunc.Scalar": math.trunc,
    "sym_float.Scalar": float,
    "sym_int.Scalar": int,
    "sym_max.Scalar": max,
    "sym_min.Scalar": min,
    "sym_not.Scalar": operator.not_,
    "sym_ite.Scalar": lambda condition, yes, no: yes if condition else no,
}


def make_prim(
    function: Callable[..., Any],
) -> Callable[[list[Any], Sequence[int]], None]:
    """Turn a function that returns a scalar into an operator on a method's values."""

    def run(values: list[Any], args: Sequence[int]) -> None:
        *operands, result = args
        try:
            values[result] = function(*(values[index] for index in operands))
        except (ArithmeticError, TypeError) as error:
            raise RefusalError(f"{type(error).__name__}: {error}") from error

    return run


def _view(values: list[Any], args: Sequence[int]) -> None:
    """Make a view of a tensor in the same memory; one of its sizes may be -1."""
    source, view = values[args[0]], values[args[-1]]
    sizes = [values[index] for index in values[args[1]]]
    number = math.prod(source.sizes)
    known_number = math.prod(size for size in sizes if size != -1)
    if known_number:
        sizes = [number // known_number if size == -1 else size for size in sizes]
    if math.prod(sizes) != number:
        raise RefusalError(f"a view of sizes {sizes} of {number} values")
    view.share(source, sizes)


def _copy_index(values: list[Any], args: Sequence[int]) -> None:
    """Write a tensor to an index of another tensor, which ends after that index."""
    target, source, index = (values[arg] for arg in args[:3])
    row = source.tensor().clone()
    target.sizes = (index + 1, *source.sizes)
    if target.sizes[0] > target.most[0] or target.sizes[1:] != tuple(row.shape):
        raise RefusalError(f"index {index} of a tensor of sizes {list(target.most)}")
    target.tensor()[index].copy_(row)


KERNELS: Mapping[str, Callable[[list[Any], Sequence[int]], None]] = {
    "et_view.default": _view,
    "et_copy_index.tensor": _copy_index,
    "sym_size.int": make_prim(lambda slot, dimension: slot.sizes[dimension]),
    "sym_numel": make_prim(lambda slot: math.prod(slot.sizes)),
    "sym_stride.int": make_prim(
        lambda slot, dimension: slot.tensor().stride(dimension)
    ),
    "_local_scalar_dense": make_prim(lambda slot: slot.tensor().item()),
    "item": make_prim(lambda slot: slot.tensor().item()),
    # Constraints only matter for lowering.
    "sym_constrain_range": lambda values, args: None,
    "sym_constrain_range_for_size": lambda values, args: None,
}
