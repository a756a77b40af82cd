"""Recipes: how the bytes of stored blobs come from a program's constants, as a list of steps.

A step makes a storage: from an archive, or by one operator of ATen from views of earlier storages.
Which steps there were is recorded while torch runs them (`watch.py`); here numpy repeats them with
other weights, without torch. The operators are few, each of them rounds once, as IEEE 754 has it,
so that the bytes are torch's; what is none of them is not repeated, and its constants must stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.compile.refit.arrays import (
    NUMPY,
    Array,
    UnknownValueError,
    View,
    cast,
    lay_out,
    look,
    width,
)

Json = Mapping[str, Any]
SOURCE, LITERAL, UNKNOWN = "source", "literal", "unknown"


def _shift_left(values: Array, by: int) -> Array:
    return np.left_shift(values, values.dtype.type(by))


# What computes one value from the values of the same place, all of the result's dtype.
_ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "aten.add.Tensor": np.add,
    "aten.sub.Tensor": np.subtract,
    "aten.mul.Tensor": np.multiply,
    "aten.div.Tensor": np.divide,
    "aten.neg.default": np.negative,
    "aten.sqrt.default": np.sqrt,
    "aten.rsqrt.default": lambda x: x.dtype.type(1) / np.sqrt(x),
    "aten.reciprocal.default": lambda x: x.dtype.type(1) / x,
    "aten.bitwise_or.Tensor": np.bitwise_or,
    "aten.bitwise_and.Scalar": np.bitwise_and,
    "aten.__lshift__.Scalar": _shift_left,
    "aten.bitwise_left_shift.Tensor_Scalar": _shift_left,
}
# What tells something of values, in bools.
_COMPARING: Mapping[str, Callable[..., Array]] = {
    "aten.lt.Scalar": np.less,
    "aten.le.Scalar": np.less_equal,
    "aten.gt.Scalar": np.greater,
    "aten.ge.Scalar": np.greater_equal,
    "aten.eq.Scalar": np.equal,
    "aten.ne.Scalar": np.not_equal,
    "aten.isnan.default": np.isnan,
    "aten.isinf.default": np.isinf,
    "aten.isfinite.default": np.isfinite,
    "aten.logical_not.default": np.logical_not,
    "aten.any.default": np.any,
    "aten.all.default": np.all,
}
# What chooses one of the values.
_CHOOSING: Mapping[str, Callable[..., Array]] = {
    "aten.min.default": np.min,
    "aten.max.default": np.max,
}
_COPYING = frozenset({"aten.clone.default", "aten._to_copy.default", "aten.copy_.default"})
_PAD = "aten.constant_pad_nd.default"
KNOWN = frozenset({*_ELEMENTWISE, *_COMPARING, *_CHOOSING, *_COPYING, _PAD})
_FLOATS = frozenset({"float32", "float64"})
_INTEGERS = frozenset({"int8", "uint8", "int16", "int32", "int64"})


def is_repeatable(step: Json) -> bool:
    """Return whether numpy gives the bytes that torch gives for a step, as far as dtypes tell."""
    if step["op"] in (SOURCE, LITERAL):
        return True
    given = [each["dtype"] for each in views_of(step)]
    computing = step["op"] in _ELEMENTWISE
    known = _FLOATS | _INTEGERS
    if computing:  # halves are computed as floats by torch, and rounded at another place
        return step["dtype"] in known and set(given) == {step["dtype"]}
    if step["op"] in _COMPARING or step["op"] in _CHOOSING:
        return set(given) <= known | {"bool"}
    return step["op"] in KNOWN


def views_of(step: Json) -> list[Any]:
    """Return the views that a step takes."""
    return [each for each in step.get("args", ()) if isinstance(each, Mapping)]


class Evaluation:
    """Repeats steps with the storages of other weights.

    Args:
        sources: returns the bytes of a source step's storage.
    """

    def __init__(self, steps: Sequence[Json], sources: Callable[[Json], Array]) -> None:
        self._steps = steps
        self._sources = sources

    def values(self, view: View) -> Array:
        """Return the values of a view. Raises UnknownValueError."""
        return look(self.storage(view.step), view)

    def storage(self, number: int) -> Array:
        """Return the bytes that a step makes. Raises UnknownValueError."""
        step = self._steps[number]
        if step["op"] == SOURCE:
            return self._sources(step)
        if step["op"] == LITERAL:
            return np.frombuffer(bytes.fromhex(step["bytes"]) * step["count"], np.uint8)
        if not is_repeatable(step):
            raise UnknownValueError(f"{step['op']}")
        if any(not 0 <= each["step"] < number for each in views_of(step)):
            raise UnknownValueError("a step that takes a later one")
        return lay_out(self._compute(step), step["sizes"], step["strides"])

    def _compute(self, step: Json) -> Array:
        """Return the values of a step, in torch's order of indices."""
        op, dtype = step["op"], step["dtype"]
        views = [View.from_json(each) for each in views_of(step)]
        if op in _COPYING:
            (view,) = views
            values = cast(self.values(view), view.dtype, dtype)
            return np.broadcast_to(values, step["sizes"])
        kind = np.dtype(views[0].dtype if op in _COMPARING else dtype)
        left = iter(map(self.values, views))
        args = [
            next(left) if isinstance(each, Mapping) else _scalar(each, kind)
            for each in step["args"]
        ]
        if op == _PAD:
            values, pads, filling = args[0], step["args"][1], args[2] if len(args) > 2 else 0
            pairs = [tuple(pads[place : place + 2]) for place in range(0, len(pads), 2)]
            widths = [*[(0, 0)] * (values.ndim - len(pairs)), *reversed(pairs)]
            return np.pad(values, widths, constant_values=filling)
        function = {**_ELEMENTWISE, **_COMPARING, **_CHOOSING}[op]
        with np.errstate(all="ignore"):
            return np.asarray(function(*args), dtype)


def _scalar(value: Any, kind: np.dtype[Any]) -> Any:
    """Return a number as torch's kernels take it: of the dtype that they compute in."""
    return value if isinstance(value, list | bool) else kind.type(value)


def check_steps(steps: Sequence[Json]) -> None:
    """Raise UnknownValueError for a list of steps that no watch writes."""
    for number, step in enumerate(steps):
        if any(each["step"] >= number for each in views_of(step)):
            raise UnknownValueError(f"step {number} takes a later one")
        if "dtype" in step:
            width(step["dtype"])


__all__ = ["KNOWN", "LITERAL", "NUMPY", "SOURCE", "UNKNOWN", "Evaluation", "is_repeatable"]
