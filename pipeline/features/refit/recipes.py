"""Recipes: how the bytes of stored blobs derive from a program's constants, as a list of steps.

A step makes a storage: from an archive, or by one ATen operator from views of earlier storages. The
steps are recorded while torch runs them (`watch.py`); here numpy repeats them with other weights,
without torch. The operators are few, and each rounds once, according to IEEE 754, so the bytes
equal torch's. Only the square root is rounded differently (`square_root`). Any other operator isn't
repeated, and its constants must stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.compile.inspect.arrays import Array, UnknownValueError, View
from pipeline.compile.inspect.arrays import look as look_at
from pipeline.features.refit.archive_storages import Storage, read_storage
from pipeline.features.refit.square_root import sqrt
from pipeline.features.refit.values import can_cast, cast, lay_out

Json = Mapping[str, Any]
SOURCE, LITERAL, UNKNOWN = "source", "literal", "unknown"
# Bytes: the largest result that is kept for the steps that use it, and the room for all of these.
_SMALL, _ROOM = 1 << 18, 1 << 26
_TINY = 1 << 14  # bytes of a source that is kept, too

_least = np.minimum.reduce
# Operators that compute each value from values at the same place, in their common dtype.
_COMPUTING: Mapping[str, Callable[..., Array]] = {
    "aten.add.Tensor": np.add,
    "aten.sub.Tensor": np.subtract,
    "aten.mul.Tensor": np.multiply,
    "aten.div.Tensor": np.divide,
    "aten.neg.default": np.negative,
    "aten.abs.default": np.abs,
    "aten.sqrt.default": sqrt,
    "aten.rsqrt.default": lambda x: x.dtype.type(1) / np.sqrt(x),
    "aten.reciprocal.default": lambda x: x.dtype.type(1) / x,
    "aten.bitwise_or.Tensor": np.bitwise_or,
    "aten.bitwise_and.Tensor": np.bitwise_and,
    "aten.__lshift__.Scalar": np.left_shift,
    "aten.bitwise_left_shift.Tensor_Scalar": np.left_shift,
    "aten.min.default": np.min,
    "aten.max.default": np.max,
}
# Operators that test values and return bools.
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
_CHOOSING = frozenset({"aten.min.default", "aten.max.default"})
_COPYING = frozenset(
    {"aten.clone.default", "aten._to_copy.default", "aten.copy_.default"}
)
_PADDING = "aten.constant_pad_nd.default"
_FLOATS = frozenset({"float32", "float64"})
_INTEGERS = frozenset({"int8", "uint8", "int16", "int32", "int64"})
# torch computes halves as floats, and rounds in another place.
_COMPUTED = _FLOATS | _INTEGERS | {"bool"}
_OF_FLOATS = frozenset(
    f"aten.{name}"
    for name in ("div.Tensor", "sqrt.default", "rsqrt.default", "reciprocal.default")
)


def is_repeatable(step: Json) -> bool:
    """Return whether numpy gives the same bytes as torch for a step.

    The answer depends only on its operator, its dtypes and the kinds of its arguments.
    """
    op = step["op"]
    if op in (SOURCE, LITERAL):
        return True
    args = step.get("args", ())
    dtypes = [argument["dtype"] for argument in views_of(step)]
    if not dtypes or any(isinstance(argument, str) for argument in args):
        return False
    if op in _COPYING:
        return len(args) == 1 and can_cast(dtypes[0], step["dtype"])
    if op == _PADDING:
        return set(dtypes) == {step["dtype"]} and step["dtype"] in _COMPUTED
    if op in _COMPARING:
        return len(set(dtypes)) == 1 and _is_compared(dtypes[0], args)
    dtype = step["dtype"]
    kinds = _FLOATS if op in _OF_FLOATS else _COMPUTED
    # float64 holds every float32 value exactly.
    exact = {dtype, "float32"} if dtype == "float64" else {dtype}
    return op in _COMPUTING and dtype in kinds and set(dtypes) <= exact


def _is_compared(dtype: str, args: Sequence[Any]) -> bool:
    """Return whether torch makes a comparison with these numbers in the dtype of its tensor.

    torch compares in floats for a fraction, and in integers for a number and a bool.
    """
    numbers = [argument for argument in args if not isinstance(argument, Mapping)]
    if dtype in _INTEGERS:
        return all(isinstance(number, int) for number in numbers)
    return dtype in _FLOATS or (dtype == "bool" and not numbers)


def views_of(step: Json) -> list[Any]:
    """Return the views that a step takes."""
    return [argument for argument in step.get("args", ()) if isinstance(argument, dict)]


def taken_steps(step: Json) -> list[int]:
    """Return the numbers of the steps that a step takes input from."""
    return list(step.get("of", ())) + [view["step"] for view in views_of(step)]


def find_sources(steps: Sequence[Json], number: int) -> list[int]:
    """Return the source steps that a step depends on, in order."""
    visited = set()
    waiting = [number]
    while waiting:
        if (step_number := waiting.pop()) not in visited:
            visited.add(step_number)
            waiting += taken_steps(steps[step_number])
    return sorted(
        step_number for step_number in visited if steps[step_number]["op"] == SOURCE
    )


def rests_on_unknown(steps: Sequence[Json]) -> list[bool]:
    """Return, for each step, whether it or a step that it depends on can't be repeated.

    A watch has checked the steps: it calls those that can't be repeated unknown.
    """
    unknown: list[bool] = []
    for step in steps:
        is_unknown = step["op"] == UNKNOWN
        unknown.append(is_unknown or any(unknown[n] for n in taken_steps(step)))
    return unknown


class Evaluation:
    """Repeats steps with the storages of other weights, and keeps only small results.

    Args:
        sources: returns a source step's storage.

    Raises:
        UnknownValueError: a step is one that no watch writes, or can't be repeated.
    """

    def __init__(
        self, steps: Sequence[Json], sources: Callable[[Json], Storage]
    ) -> None:
        self._steps = steps
        self._sources = sources
        self._kept: dict[int, Storage] = {}
        self._room = _ROOM
        for number, step in enumerate(steps):
            if not isinstance(step, dict):
                raise UnknownValueError("a step that is not a record")
            if any(not 0 <= taken < number for taken in taken_steps(step)):
                raise UnknownValueError("a step that uses a later one")

    def values(self, view: View) -> Array:
        """Return the values of a view."""
        return look_at(read_storage(self.storage(view.step)), view)

    def storage(self, number: int) -> Storage:
        """Return the storage that a step makes."""
        if number in self._kept:
            return self._kept[number]
        step = self._steps[number]
        if step["op"] == SOURCE:
            source = self._sources(step)
            if source.nbytes <= _TINY and self._takes(source):
                source = read_storage(source)  # once for all steps that use it
            self._kept[number] = source
            return source
        if step["op"] == LITERAL:
            count = step["count"]
            return np.frombuffer(bytes.fromhex(step["bytes"]) * count, np.uint8)
        if not is_repeatable(step):
            raise UnknownValueError(str(step.get("what", step["op"])))
        if (copied := self._find_copied(step)) is not None:
            return copied
        made = lay_out(self._compute(step), step["sizes"], step["strides"])
        if self._takes(made):
            self._kept[number] = made
        return made

    def _find_copied(self, step: Json) -> Storage | None:
        """Return the storage that a step copies byte for byte, or None if it does anything else."""
        if step["op"] not in _COPYING:
            return None
        view = View.from_json(views_of(step)[0])
        storage = self.storage(view.step)
        layout = view.dtype, list(view.sizes), list(view.strides)
        is_same = layout == (step["dtype"], list(step["sizes"]), list(step["strides"]))
        is_whole = (view.offset, view.nbytes) == (0, storage.nbytes)
        return storage if is_same and is_whole and view.is_contiguous else None

    def _takes(self, storage: Storage) -> bool:
        """Return whether there is room to keep a storage's bytes, and take that room."""
        is_small = storage.nbytes <= min(_SMALL, self._room)
        if is_small:
            self._room -= storage.nbytes
        return is_small

    def _compute(self, step: Json) -> Array:
        """Return the values of a step, in torch's order of indices."""
        op = step["op"]
        dtype = step["dtype"]
        views = [View.from_json(view) for view in views_of(step)]
        if op in _COPYING:
            values = self.values(views[0])
            if dtype != views[0].dtype:
                _refuse_nan(values)  # bfloat16 doesn't keep its bits
                values = cast(values, views[0].dtype, dtype)
                _refuse_nan(values)
            sizes = tuple(step["sizes"])
            return values if values.shape == sizes else np.broadcast_to(values, sizes)
        args = list(
            self._arguments(step, views[0].dtype if op in _COMPARING else dtype)
        )
        with np.errstate(all="ignore"):
            if op == _PADDING:
                return _pad(*args)
            values = np.asarray((_COMPUTING.get(op) or _COMPARING[op])(*args), dtype)
        _refuse_nan(values)
        if op in _CHOOSING and dtype in _FLOATS and values == 0:
            raise UnknownValueError("the sign of a zero that is the minimum or maximum")
        return values

    def _arguments(self, step: Json, dtype: str) -> Iterator[Any]:
        """Yield arguments as torch's kernels take them.

        Numbers, too, are in the dtype in which the kernels compute.
        """
        kind = np.dtype(dtype)
        for argument in step["args"]:
            if isinstance(argument, dict):
                yield self.values(View.from_json(argument)).astype(kind, copy=False)
            else:
                yield argument if isinstance(argument, list) else kind.type(argument)


def _refuse_nan(values: Array) -> None:
    """Raise UnknownValueError for a computed NaN.

    Its sign and payload differ between libraries and processors. A NaN that is copied is exact.
    """
    if values.dtype.kind == "f" and values.size and math.isnan(_least(values, None)):
        raise UnknownValueError("a NaN that is computed from constants")


def _pad(values: Array, pads: Sequence[int], filling: Any = 0) -> Array:
    """Pad as `torch.nn.functional.pad` does, whose pairs begin at the last dimension."""
    pairs = []
    for place in range(0, len(pads), 2):
        pairs.append(tuple(pads[place : place + 2]))
    widths = [*[(0, 0)] * (values.ndim - len(pairs)), *reversed(pairs)]
    return np.pad(values, widths, constant_values=filling)
