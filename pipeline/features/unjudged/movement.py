"""Measures how far the outputs of a source move over the calls in which a package was compared.

A comparison shows something only if it could have failed: a package that ignores its inputs, and
always returns the source's outputs on the first inputs, must exceed the limits in some call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipeline.config.validation import Limits
from pipeline.program.inputs import InputSet
from pipeline.validate.limits import check_limits
from pipeline.validate.metrics import OutputError, compare, json_number

_MOST_VALUES = 1 << 24  # kept of a tensor; of a larger one, every n-th value
_MOST_SHAPES = 8  # shapes whose first value is kept
_EQUAL = OutputError(0.0, 0.0, math.inf)


@dataclass
class FirstValue:
    """The first value of an output in one shape, and the inputs that gave it.

    Attributes:
        later_inputs: inputs that differ from the first ones, and on which the output has this
            shape.
        moved: for a tensor, the positions whose values have changed since.
    """

    value: Any
    inputs: InputSet
    later_inputs: InputSet | None = None
    moved: Tensor | None = None

    def move_to(self, value: Any) -> None:
        """Record which positions have another value by now."""
        if not isinstance(value, Tensor):
            return
        changed = value != self.value
        if not _is_finite(value):
            changed &= ~(value.isnan() & self.value.isnan())
        self.moved = changed if self.moved is None else self.moved | changed


class OutputMovement:
    """The movement of one output over all calls, each compared with the first of its shape.

    Attributes:
        values: the number of values over all calls; text and the like count as one.
        nonfinite: the number of NaN or infinite values on examples, out of `example_values`.
        example_nans: the number of NaN values on examples.
        nans: the number of NaN values, out of `values`.
        limits: the limits that a package was held to last.
        noticed: whether the first value, in place of a later one, would exceed its limits.
        moves_if_large: whether it would in a call on large inputs, which count for nothing else.
        largest: the greatest distance of a value from the first one.
    """

    def __init__(self) -> None:
        self.calls: int = 0
        self.values: int = 0
        self.nans: int = 0
        self.example_values: int = 0
        self.example_nans: int = 0
        self.nonfinite: int = 0
        self.limits: Limits = Limits()
        self.noticed: bool = False
        self.moves_if_large: bool = False
        self.largest: float = 0.0
        self.firsts: dict[Any, FirstValue] = {}
        self._distance: float = 0.0
        self._compared: int = 0
        self._share: float | None = None
        self._released: bool = False
        self._latest: tuple[Any, Any, OutputError] | None = None

    def add(self, value: Any, limits: Limits, inputs: InputSet, case: str = "") -> None:
        """Add the output of the source in a call, and the limits that the package was held to."""
        # Nobody may ever pass large inputs, so they only show whether the output would move.
        is_large = case == "large"
        if not is_large:
            self.calls += 1
            self._count(value, is_example=not inputs.generated)
            self.limits = limits
        if self._released:
            return
        value, shape = _thin_out(value), _shape_of(value)
        first = self.firsts.get(shape)
        if is_large:
            self.moves_if_large |= first is not None and self._exceeds(
                first, value, limits
            )
            return
        if first is None:
            # Dynamic sizes can give a new shape in each call; a few shapes show whether the output
            # moves.
            if len(self.firsts) < _MOST_SHAPES:
                self.firsts[shape] = FirstValue(value, inputs)
            return
        if (
            not self.noticed
            and first.later_inputs is None
            and not have_same_values(first.inputs, inputs)
        ):
            first.later_inputs = inputs
        self._measure(first, value)
        self.noticed = self.noticed or self._exceeds(first, value, limits)
        self._latest = None

    def would_notice(self, value: Any, limits: Limits) -> bool:
        """Return whether a value would show that the output moves, which no earlier one did."""
        if self.noticed or self._released:
            return False
        value, shape = _thin_out(value), _shape_of(value)
        return shape in self.firsts and self._exceeds(self.firsts[shape], value, limits)

    def _exceeds(self, first: FirstValue, value: Any, limits: Limits) -> bool:
        """Return whether the first value, in place of a later one, exceeds the limits."""
        error = self._compare(first.value, value)
        return bool(check_limits(error, first.value, value, limits))

    def _compare(self, first_value: Any, value: Any) -> OutputError:
        """Compare the first value with a later one, unless that was done last."""
        if self._latest is not None:
            latest_first, latest_value, error = self._latest
            if latest_first is first_value and latest_value is value:
                return error
        if isinstance(value, Tensor) and torch.equal(first_value, value):
            error = _EQUAL
        else:
            error = compare(first_value, value)
        self._latest = first_value, value, error
        return error

    def _measure(self, first: FirstValue, value: Any) -> None:
        """Add the distance of a value from the first one, over elements that are finite in both."""
        first_value, later_value = first.value, value
        if isinstance(value, Tensor) and not (
            _is_finite(first_value) and _is_finite(later_value)
        ):
            both = first_value.isfinite() & later_value.isfinite()
            first_value = first_value[both]
            later_value = later_value[both]
        error = self._compare(first_value, later_value)
        if not math.isfinite(error.max_abs):  # text
            return
        size = later_value.numel() if isinstance(later_value, Tensor) else 1
        self.largest = max(self.largest, error.max_abs)
        self._distance += error.mean_abs * size
        self._compared += size
        first.move_to(value)

    def _count(self, value: Any, is_example: bool) -> None:
        size = value.numel() if isinstance(value, Tensor) else 1
        nans = nonfinite = 0
        if isinstance(value, Tensor) and not _is_finite(value):
            nans = int(value.isnan().sum())
            nonfinite = int((~value.isfinite()).sum())
        elif isinstance(value, float) and not math.isfinite(value):
            nans = int(math.isnan(value))
            nonfinite = 1
        self.values += size
        self.nans += nans
        if is_example:
            self.example_values += size
            self.example_nans += nans
            self.nonfinite += nonfinite

    @property
    def other_inputs(self) -> tuple[FirstValue, InputSet] | None:
        """The first value, and other inputs that gave the same shape; None if there are none."""
        for first in self.firsts.values():
            if first.later_inputs is not None:
                return first, first.later_inputs
        return None

    @property
    def share(self) -> float | None:
        """The share of positions that moved, from 0 to 1; None if nothing could be compared."""
        masks = [
            first.moved for first in self.firsts.values() if first.moved is not None
        ]
        places = sum(mask.numel() for mask in masks)
        if not places:
            return self._share
        return sum(int(mask.sum()) for mask in masks) / places

    def release(self) -> None:
        """Drop the values of an output that moved, since only its figures are still needed."""
        if self.noticed:
            self._share = self.share
            self._released = True
            self.firsts = {}

    def to_json(self, output: str) -> dict[str, Any]:
        typical = None
        if self._compared:
            typical = self._distance / self._compared
        record: dict[str, Any] = {
            "output": output,
            "calls": self.calls,
            "largest": json_number(self.largest) if self._compared else None,
            "typical": json_number(typical),
            "share": json_number(self.share),
            "judged": True,
        }
        if self.nonfinite:
            record["nonfinite"] = self.nonfinite
            record["example_values"] = self.example_values
        return record


def have_same_values(inputs: InputSet, other_inputs: InputSet) -> bool:
    """Return whether two input sets have the same values, whatever their layout."""
    if inputs is other_inputs:
        return True
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    other_leaves = pytree.tree_leaves((other_inputs.args, other_inputs.kwargs))
    return have_same_leaves(leaves, other_leaves)


def have_same_leaves(leaves: Sequence[Any], other_leaves: Sequence[Any]) -> bool:
    return len(leaves) == len(other_leaves) and all(map(_is_same, leaves, other_leaves))


def _is_same(value: Any, other_value: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other_value, Tensor):
        return value.shape == other_value.shape and bool(
            torch.equal(value, other_value)
        )
    return bool(type(value) is type(other_value) and value == other_value)


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all values are known to be finite, because their sum is.

    The sum of finite values may overflow. It takes much less time than a look at each value.
    """
    return bool(tensor.sum().isfinite())


def _shape_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape
    return type(value)


def _thin_out(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.numel() <= _MOST_VALUES:
        return value
    return value.reshape(-1)[:: math.ceil(value.numel() / _MOST_VALUES)].clone()
