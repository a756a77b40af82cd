"""Makes input sets that try what random ones leave out: zeros, large values, the limits of dynamic
sizes, and tensors that lie in memory otherwise than those of the export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pipeline.config.validation import Limits
from pipeline.program.eager import Source
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
from pipeline.store.reasons import reason
from pipeline.validate.budget import Budget, OutOfTimeError
from pipeline.validate.limits import check_limits, drop_limits_of_noise, scale_limits
from pipeline.validate.metrics import compare, greatest_magnitude

# Powers of two by which random values are multiplied: the first at which the source holds counts.
_EXPONENTS = (10, 7, 4)
_UNITS = 8  # in the last place, by which inputs are changed to see what rounding does to the source
_LEAST_SQNR = 20.0  # dB, that rounding inputs must leave where no other limits are set
_SAME = Limits(atol=1e-3, rtol=1e-3)  # values of one source in another layout of its inputs
_OWN_LAYOUT = "the source program takes strides, and gives other values in this layout"
View = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True, eq=False)
class InputCase(InputSet):
    """An input set of the kind `case`; `growth` says, where not empty, how many times as large each
    output of the source is as on ordinary inputs."""

    case: str = ""
    growth: tuple[float, ...] = ()

    def ease(self, limits: Limits, output: int, expected: Any) -> Limits:
        """Return the limits that an output of this case is held to."""
        if self.case in ("zeros", "expanded"):
            return drop_limits_of_noise(limits, expected)
        return scale_limits(limits, self.growth[output]) if self.growth else limits


@dataclass
class CaseMaker:
    """Makes input sets for a source program, the same for the same seed. Raises PipelineError for
    an example that does not fit it.

    `zeros`: numbers are 0, bools false. `limits`: the least and the greatest of all dynamic sizes,
    unless random sets have them. `strided`: the first example, or a random set, as views: its last
    two dimensions transposed, every second of twice as many values, the other memory format.
    `expanded`: of that set the first along a dimension, all along it. `large`: numbers up to 1024
    times as large as random ones, or fewer, as long as the source stays finite, and rounding its
    inputs leaves its outputs within the limits; where it is never finite, NaN and infinities are
    what both must give. Integers stay within the range of the examples: they may be indices.

    Attributes:
        count: of random sets, which are numbered before these.
        limits: of the method, for outputs of the usual size.
        shapes: the only ones that the package takes, where it does not take all sizes.
        budget: the time for trying which values are large.
        skipped: the cases that could not be made, each with the reason.
        left_out: those for which there was no time.
    """

    source: Source
    count: int
    seed: int
    examples: Sequence[InputSet]
    limits: Limits
    budget: Budget = field(default_factory=Budget)
    shapes: Shapes | None = None
    sets: list[InputCase] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = Generator(self.source.program, self.seed, self.examples, self.shapes)

    def make(self, wanted: Sequence[str]) -> Iterator[InputCase]:
        """Make the wanted cases, each as it is asked for."""
        for case in wanted:
            made = len(self.sets)
            try:
                self.budget.check()
                getattr(self, f"add_{case}")()
            except OutOfTimeError:
                self.left_out.append(case)
            yield from self.sets[made:]

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
        made = InputCase(inputs.args, inputs.kwargs, inputs.origin, True, case, tuple(growth))
        self.sets.append(made)

    def add_zeros(self) -> None:
        self.add(self.generator.set(self.number, 2, fill_zeros, "zeros"), "zeros")

    def add_limits(self) -> None:
        if self.generator.is_dynamic:
            for sizes, what in enumerate(("least sizes", "greatest sizes")):
                if self.count <= sizes:
                    self.add(self.generator.set(self.number, sizes, note=what), "limits")

    def add_large(self) -> None:
        number = self.number
        try:
            self._add_large(number)
        except OutOfTimeError:
            raise
        except Exception as error:  # whatever an operator raises
            reason = describe_source_error(error)
            self.skipped.append((f"generated {number}: large", reason))

    def _add_large(self, number: int) -> None:
        usual = self.run(self.generator.set(number, 2))
        finite, before = all(map(_is_finite, usual)), [greatest_magnitude(each) for each in usual]
        given = [argument.value for argument in signature(self.source.program)]
        numbers = any(is_floating(v.dtype) for v in given if isinstance(v, torch.Tensor))
        infinite: tuple[InputSet, list[float]] | None = None
        for exponent in _EXPONENTS:
            what = f"large, {2**exponent} times" if numbers else "large"
            inputs = self.generator.set(number, 2, partial(fill_large, exponent), what)
            outputs = self.run(inputs)
            pairs = zip(outputs, before, strict=True)
            growth = [greatest_magnitude(output) / n if n else 1.0 for output, n in pairs]
            if finite and not all(map(_is_finite, outputs)):
                infinite = infinite or (inputs, growth)
            elif self._holds(inputs, outputs, growth):
                self.add(inputs, "large", growth)
                return
            else:
                infinite = None
        if infinite is not None:  # however large
            self.add(infinite[0], "large", infinite[1])
            return
        origin = f"generated {number} (seed {self.seed}): large"
        reason = "rounding the inputs alone moves the source's outputs beyond the limits"
        self.skipped.append((origin, reason))

    def _holds(self, inputs: InputSet, outputs: list[Any], growth: Sequence[float]) -> bool:
        """Return whether the source's outputs stay within the limits when its inputs are rounded;
        where limits are derived from rounding, whether more than rounding is left of them.
        Limits of zero ask for the same operations, whatever rounding does."""
        if self.limits.atol == self.limits.rtol == 0:
            return True
        limits = self.limits if self.limits.atol is not None else Limits(min_sqnr=_LEAST_SQNR)
        args, kwargs = pytree.tree_map(_round, (inputs.args, inputs.kwargs))
        rounded = self.run(replace(inputs, args=args, kwargs=kwargs))
        return not any(
            any(check_limits(compare(a, e), a, e, scale_limits(limits, times)))
            for a, e, times in zip(rounded, outputs, growth, strict=True)
        )

    def add_strided(self) -> None:
        for what, view in _VIEWS.items():
            self._add_view("strided", f"strided, {what}", view)

    def add_expanded(self) -> None:
        self._add_view("expanded", "expanded", _expanded)

    def _add_view(self, case: str, what: str, view: View) -> None:
        base = self.examples[0] if self.examples else self.generator.set(self.number, 2)
        leaves = flatten(self.source.program, base)
        views = [_lay_out_by(view, leaf) for leaf in leaves]
        if all(one is other for one, other in zip(leaves, views, strict=True)):
            return
        what += f", values of {base.origin}" if self.examples else ""
        origin = f"generated {self.number} (seed {self.seed}): {what}"
        inputs = nest_leaves(self.source.program, views, origin)
        if self._depends_on_layout(inputs):
            self.skipped.append((origin, _OWN_LAYOUT))
        else:
            self.add(inputs, case)

    def _depends_on_layout(self, inputs: InputSet) -> bool:
        """Return whether the source gives other values where its inputs lie otherwise: there is
        no right answer then. Operators that take strides do so, which no others can."""
        names = map(base_name, iter_nodes(self.source.program))
        if not any(name.startswith("as_strided") for name in names):
            return False
        try:
            outputs = [self.run(inputs, as_it_lies) for as_it_lies in (True, False)]
        except OutOfTimeError:
            raise
        except Exception:  # whatever an operator raises: told when the case is run
            return False
        pairs = zip(*outputs, strict=True)
        return any(check_limits(compare(a, e), a, e, _SAME) for a, e in pairs)


def describe_source_error(error: Exception) -> str:
    """Describe what an operator of the source program raised."""
    return f"the source program itself fails: {type(error).__name__}: {reason(error)}"


def _is_finite(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or bool(value.isfinite().all())


def _round(value: Any) -> Any:
    """Change the last places of numbers, up and down in turn."""
    if not isinstance(value, torch.Tensor) or not is_floating(value.dtype):
        return value
    step = _UNITS * torch.finfo(value.dtype).eps
    signs = 1 - 2 * (torch.arange(value.numel()).reshape(value.shape) % 2)
    wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
    return (wide * (1 + step * signs)).to(value.dtype)


def _lay_out_by(view: View, value: Any) -> Any:
    """Return the view of a tensor if it lies otherwise; the value itself if not."""
    made = view(value) if isinstance(value, torch.Tensor) else None
    if made is None:
        return value
    places = zip(value.shape, value.stride(), made.stride(), strict=True)
    return made if any(one != other for size, one, other in places if size > 1) else value


# Views: tensors of the same dtype and sizes that may lie otherwise, or None where there is none.


def _stepped(value: torch.Tensor) -> torch.Tensor | None:
    """Spread the values; between them stand those of the reverse."""
    if value.ndim == 0 or value.shape[-1] < 2 or not value.numel():
        return None
    return torch.stack((value, value.flip(-1)), -1).flatten(-2)[..., ::2]


def _expanded(value: torch.Tensor) -> torch.Tensor | None:
    """Repeat the first along the first dimension that has several."""
    for dimension, size in enumerate(value.shape):
        if size > 1 and value.numel():
            return value.narrow(dimension, 0, 1).expand(value.shape)
    return None


def _other_format(value: torch.Tensor) -> torch.Tensor | None:
    other = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.ndim)
    if other is None:
        return None
    if value.is_contiguous(memory_format=other):
        other = torch.contiguous_format
    return value.contiguous(memory_format=other)


_VIEWS: dict[str, View] = {
    "transposed": lambda value: value.mT.contiguous().mT if value.ndim > 1 else None,
    "every second value": _stepped,
    "other memory format": _other_format,
}
