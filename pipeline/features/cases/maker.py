"""Makes input sets for cases that random inputs don't cover.

The cases are zeros, large values, the limits of dynamic sizes, and tensors whose memory layout
differs from that at export.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pipeline.config.validation import Limits
from pipeline.features.cases.layouts import (
    STRIDED_VIEWS,
    View,
    expand_first,
    lay_out_by,
)
from pipeline.program.eager import Source, find_effects
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from pipeline.program.random_inputs import (
    Generator,
    Shapes,
    fill_large,
    fill_zeros,
    is_floating,
)
from pipeline.program.signature import flatten, nest_leaves, signature
from pipeline.validate.budget import Budget, OutOfTimeError
from pipeline.validate.cases import describe_source_error
from pipeline.validate.limits import check_limits, scale_limits
from pipeline.validate.metrics import compare, greatest_magnitude

# Powers of two by which random values are multiplied; the first that the source tolerates is used.
_EXPONENTS = (10, 7, 4)
# Inputs change by so many units in the last place, to show the effect of rounding.
_UNITS = 8
_LEAST_SQNR = 20.0  # dB to keep after rounding inputs, without other limits
# Limits for the outputs of one source in two layouts of its inputs.
_SAME = Limits(atol=1e-3, rtol=1e-3)
_OWN_LAYOUT = (
    "the source program reads strides, and returns other values in this layout"
)


class CaseMaker:
    """Makes input sets for a source program, the same for the same seed.

    Raises PipelineError if an example doesn't fit the program.

    - `zeros`: numbers are 0, bools false.
    - `limits`: the minimum and the maximum of all dynamic sizes, unless random sets have them.
    - `strided`: the first example, or a random set, as views: with the last two dimensions
      transposed, as every second of twice as many values, and in the other memory format.
    - `expanded`: the same set, with its first slice repeated along a dimension, except in inputs
      that the method changes in place: eager mode would change all repetitions at once.
    - `large`: numbers up to 1024 times as large as random ones, or smaller, so that the source
      stays finite and rounding its inputs keeps its outputs within the limits. If the source is
      never finite, both programs must return the same NaN and infinities. Integers stay within the
      range of the examples, since they may be indices.

    Attributes:
        count: the number of random sets, which are numbered before the cases.
        limits: the method's limits, for outputs of the usual magnitude.
        shapes: the only shapes that the package takes, if it doesn't take all sizes.
        budget: the time for finding out which values are large.
        skipped: the cases that could not be made, each with the reason.
        left_out: the cases for which there was no time.
    """

    def __init__(
        self,
        source: Source,
        count: int,
        seed: int,
        examples: Sequence[InputSet],
        limits: Limits,
        budget: Budget | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self.source = source
        self.count = count
        self.seed = seed
        self.examples = examples
        self.limits = limits
        self.budget = budget or Budget()
        self.sets: list[InputSet] = []
        self.skipped: list[tuple[str, str]] = []
        self.left_out: list[str] = []
        self.generator = Generator(source.program, seed, examples, shapes)

    def make(self, cases: Sequence[str]) -> Iterator[InputSet]:
        """Make cases of these kinds, lazily."""
        for case in cases:
            first_new = len(self.sets)
            try:
                self.budget.check()
                getattr(self, f"add_{case}")()
            except OutOfTimeError:
                self.left_out.append(case)
            yield from self.sets[first_new:]

    def run(self, inputs: InputSet, as_it_lies: bool = False) -> list[Any]:
        """Run the source in its initial state. Raises OutOfTimeError."""
        self.budget.check()
        self.source.reset()
        return self.source.run(inputs, as_it_lies)

    @property
    def number(self) -> int:
        """Return the number of the next set."""
        return self.count + len(self.sets) + len(self.skipped)

    def add(self, inputs: InputSet, case: str, growth: Sequence[float] = ()) -> None:
        self.sets.append(
            replace(inputs, generated=True, case=case, growth=tuple(growth))
        )

    def add_zeros(self) -> None:
        self.add(self.generator.set(self.number, 2, fill_zeros, "zeros"), "zeros")

    def add_limits(self) -> None:
        if not self.generator.is_dynamic:
            return
        for sizes, note in enumerate(("least sizes", "greatest sizes")):
            if self.count <= sizes:
                self.add(self.generator.set(self.number, sizes, note=note), "limits")

    def add_large(self) -> None:
        number = self.number
        try:
            self._add_large(number)
        except OutOfTimeError:
            raise
        except Exception as error:  # whatever an operator raises
            origin = f"generated {number}: large"
            self.skipped.append((origin, describe_source_error(error)))

    def _add_large(self, number: int) -> None:
        usual = self.run(self.generator.set(number, 2))
        finite = all(map(_is_finite, usual))
        usual_magnitudes = [greatest_magnitude(value) for value in usual]
        infinite: tuple[InputSet, list[float]] | None = None
        for exponent in _EXPONENTS:
            inputs = self._draw_large(number, exponent)
            outputs = self.run(inputs)
            growth = _measure_growth(outputs, usual_magnitudes)
            if finite and not all(map(_is_finite, outputs)):
                infinite = infinite or (inputs, growth)
            elif self._holds(inputs, outputs, growth):
                self.add(inputs, "large", growth)
                return
            else:
                infinite = None
        if infinite is not None:  # however large
            inputs, growth = infinite
            self.add(inputs, "large", growth)
            return
        origin = f"generated {number} (seed {self.seed}): large"
        reason = (
            "rounding the inputs alone moves the source's outputs beyond the limits"
        )
        self.skipped.append((origin, reason))

    def _draw_large(self, number: int, exponent: int) -> InputSet:
        note = "large"
        if self._takes_floats():
            note += f", {2**exponent} times"
        return self.generator.set(number, 2, partial(fill_large, exponent), note)

    def _takes_floats(self) -> bool:
        for argument in signature(self.source.program):
            value = argument.value
            if isinstance(value, torch.Tensor) and is_floating(value.dtype):
                return True
        return False

    def _holds(
        self, inputs: InputSet, outputs: list[Any], growth: Sequence[float]
    ) -> bool:
        """Return whether the source's outputs stay within the limits when its inputs are rounded.

        Without an absolute limit, limits are derived from rounding, so rounding must leave a
        minimum SQNR. Limits of zero require the same operations, so any values hold.
        """
        if self.limits.atol == self.limits.rtol == 0:
            return True
        limits = self.limits
        if limits.atol is None:
            limits = Limits(min_sqnr=_LEAST_SQNR)
        args, kwargs = pytree.tree_map(_round, (inputs.args, inputs.kwargs))
        rounded = self.run(replace(inputs, args=args, kwargs=kwargs))
        for actual, expected, times in zip(rounded, outputs, growth, strict=True):
            if _exceeds(actual, expected, scale_limits(limits, times)):
                return False
        return True

    def add_strided(self) -> None:
        for layout, view in STRIDED_VIEWS.items():
            self._add_view("strided", f"strided, {layout}", view)

    def add_expanded(self) -> None:
        changed = find_effects(self.source.program).changed
        self._add_view("expanded", "expanded", expand_first, changed)

    def _add_view(
        self, case: str, layout: str, view: View, kept: Collection[int] = ()
    ) -> None:
        """Add a set with views of the leaves, except of those at the `kept` positions."""
        base = self.examples[0] if self.examples else self.generator.set(self.number, 2)
        leaves = flatten(self.source.program, base)
        views = []
        for place, leaf in enumerate(leaves):
            views.append(leaf if place in kept else lay_out_by(view, leaf))
        if all(map(operator.is_, leaves, views)):
            return
        origin = f"generated {self.number} (seed {self.seed}): {layout}"
        if self.examples:
            origin += f", values of {base.origin}"
        inputs = nest_leaves(self.source.program, views, origin)
        if self._depends_on_layout(inputs):
            self.skipped.append((origin, _OWN_LAYOUT))
        else:
            self.add(inputs, case)

    def _depends_on_layout(self, inputs: InputSet) -> bool:
        """Return whether the source's outputs depend on the memory layout of its inputs.

        If so, no single output is the right answer. Only operators that take strides can cause
        this.
        """
        names = map(base_name, iter_nodes(self.source.program))
        if not any(name.startswith("as_strided") for name in names):
            return False
        try:
            as_laid_out = self.run(inputs, as_it_lies=True)
            as_exported = self.run(inputs, as_it_lies=False)
        except OutOfTimeError:
            raise
        except Exception:  # whatever an operator raises: reported when the case is run
            return False
        pairs = zip(as_laid_out, as_exported, strict=True)
        return any(_exceeds(actual, expected, _SAME) for actual, expected in pairs)


def _exceeds(actual: Any, expected: Any, limits: Limits) -> bool:
    return bool(check_limits(compare(actual, expected), actual, expected, limits))


def _measure_growth(
    outputs: Sequence[Any], usual_magnitudes: Sequence[float]
) -> list[float]:
    """Return the ratio of each output's magnitude to its usual one."""
    growth = []
    for output, usual in zip(outputs, usual_magnitudes, strict=True):
        growth.append(greatest_magnitude(output) / usual if usual else 1.0)
    return growth


def _is_finite(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or bool(value.isfinite().all())


def _round(value: Any) -> Any:
    """Change numbers in their last places, alternately up and down."""
    if not isinstance(value, torch.Tensor) or not is_floating(value.dtype):
        return value
    step = _UNITS * torch.finfo(value.dtype).eps
    parity = torch.arange(value.numel()).reshape(value.shape) % 2
    signs = 1 - 2 * parity
    wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
    return (wide * (1 + step * signs)).to(value.dtype)
