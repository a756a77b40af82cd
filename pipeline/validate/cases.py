"""Input sets that are made up to try what random ones leave out: zeros, large values, the limits of
dynamic sizes, and tensors that lie in memory otherwise than those of the export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import Generator, ends, is_number, random
from pipeline.program.signature import flatten, signature
from pipeline.validate.limits import Limits, excesses, grown, magnitude, without_signal
from pipeline.validate.metrics import compare

# How many times a standard normal large values are: the first at which the source holds.
_EXPONENTS = (10, 7, 4)
# Beyond the tenth part of what a 16-bit float holds, little can be computed.
_GREATEST_OF_HALF = 5
# By how many of its last places an input is changed, to see what rounding does to the source.
_PLACES = 8
Run = Callable[[InputSet], list[Any]]


@dataclass(frozen=True, eq=False)
class Case(InputSet):
    """`case` is its kind. `growth` says, where not empty, how many times as large each output of
    the source is as on ordinary inputs."""

    case: str = ""
    growth: tuple[float, ...] = ()

    def eased(self, limits: Limits, output: int, expected: Any) -> Limits:
        """The limits that an output of this case is held to."""
        if self.case in ("zeros", "expanded"):
            return without_signal(limits, expected)
        return grown(limits, self.growth[output]) if self.growth else limits


@dataclass
class Cases:
    """What came of making them; `skipped` are those that were not made, and why."""

    sets: list[Case] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def make_cases(
    program: ExportedProgram,
    wanted: Sequence[str],
    count: int,
    seed: int,
    examples: Sequence[InputSet],
    limits: Limits,
    run: Run,
) -> Cases:
    """The wanted cases of a method, the same for the same seed.

    `zeros`: numbers are 0, bools false. `limits`: the least and the greatest of all dynamic sizes,
    unless random sets have them. `strided`: the first example, or a random set, as views: its last
    two dimensions transposed, every second of twice as many values, the other memory format.
    `expanded`: of that set the first along a dimension, all along it. `large`: numbers up to 1024
    times as large as random ones, or fewer, as long as the source stays finite, and rounding its
    inputs leaves its outputs within the limits; where it is never finite, NaN and infinities are
    what both must give. Integers stay within the ends that the examples have: they may be indices.

    Args:
        count: of random sets, which are numbered before these.
        limits: of the method, for outputs of the usual size.
        run: one call of the source program, in its initial state.

    Raises:
        PipelineError: an example does not fit the program.
    """
    made = _Maker(program, count, Generator(program, seed, examples), examples, limits, run)
    for case in wanted:
        getattr(made, f"add_{case}")()
    return made.found


class _Maker:
    def __init__(
        self,
        program: ExportedProgram,
        count: int,
        generator: Generator,
        examples: Sequence[InputSet],
        limits: Limits,
        run: Run,
    ) -> None:
        self._program = program
        self._random = count
        self._generator = generator
        self._examples = examples
        self._limits = limits
        self._run = run
        self.found = Cases()

    @property
    def _number(self) -> int:
        return self._random + len(self.found.sets) + len(self.found.skipped)

    def _add(self, inputs: InputSet, case: str, growth: Sequence[float] = ()) -> None:
        self.found.sets.append(
            Case(inputs.args, inputs.kwargs, inputs.origin, True, case, tuple(growth))
        )

    def add_zeros(self) -> None:
        self._add(self._generator.set(self._number, 2, _zeros, "zeros"), "zeros")

    def add_limits(self) -> None:
        if self._generator.is_dynamic:
            for sizes, what in enumerate(("least sizes", "greatest sizes")):
                if self._random <= sizes:
                    self._add(self._generator.set(self._number, sizes, what=what), "limits")

    def add_large(self) -> None:
        number = self._number
        try:
            self._add_large(number)
        except Exception as error:  # whatever an operator raises
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            self.found.skipped.append((f"generated {number}: large", reason))

    def _add_large(self, number: int) -> None:
        usual = self._run(self._generator.set(number, 2))
        finite = all(map(_is_finite, usual))
        infinite: tuple[InputSet, list[float]] | None = None
        for exponent in _EXPONENTS:
            what = f"large, {2**exponent} times" if self._has_numbers else "large"
            inputs = self._generator.set(number, 2, _Large(exponent), what)
            outputs = self._run(inputs)
            growth = [_growth(e, before) for e, before in zip(outputs, usual, strict=True)]
            if finite and not all(map(_is_finite, outputs)):
                infinite = infinite or (inputs, growth)
            elif self._holds(inputs, outputs, growth):
                self._add(inputs, "large", growth)
                return
            else:
                infinite = None
        if infinite is not None:  # however large
            self._add(infinite[0], "large", infinite[1])
            return
        reason = "rounding the inputs alone moves its outputs beyond the limits"
        self.found.skipped.append(
            (f"generated {number} (seed {self._generator.seed}): large", reason)
        )

    @property
    def _has_numbers(self) -> bool:
        given = (argument.value for argument in signature(self._program))
        return any(is_number(value.dtype) for value in given if isinstance(value, torch.Tensor))

    def _holds(self, inputs: InputSet, outputs: list[Any], growth: Sequence[float]) -> bool:
        """Whether the source's outputs stay within the limits when its inputs are rounded. Limits
        of zero ask for the same operations, whatever rounding does."""
        if self._limits.atol == self._limits.rtol == 0:
            return True
        rounded = self._run(_mapped(inputs, _rounded))
        return not any(
            what
            for n, (other, output) in enumerate(zip(rounded, outputs, strict=True))
            for what in excesses(
                compare(other, output), other, output, grown(self._limits, growth[n])
            )
        )

    def add_strided(self) -> None:
        for what, view in _VIEWS.items():
            self._add_view("strided", f"strided, {what}", view)

    def add_expanded(self) -> None:
        self._add_view("expanded", "expanded", _expanded)

    def _add_view(
        self, case: str, what: str, view: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> None:
        base = self._examples[0] if self._examples else self._generator.set(self._number, 2)
        values = f"values of {base.origin}" if self._examples else ""
        leaves = flatten(self._program, base)
        views = [view(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        if all(each is None for each in views):
            return
        given = [v if each is None else each for v, each in zip(leaves, views, strict=True)]
        args, kwargs = pytree.tree_unflatten(given, self._program.call_spec.in_spec)
        told = ", ".join(filter(None, (what, values)))
        origin = f"generated {self._number} (seed {self._generator.seed}): {told}"
        self._add(InputSet(args, kwargs, origin), case)


def _zeros(
    like: torch.Tensor, shape: Sequence[int], seen: Sequence[Any], generator: torch.Generator
) -> torch.Tensor:
    if is_number(like.dtype) or like.dtype is torch.bool:
        return torch.zeros(shape)
    least, greatest = ends(seen)
    return torch.full(shape, min(max(0, least), greatest))


@dataclass(frozen=True)
class _Large:
    """Random numbers times 2 ** exponent, and the greatest integer."""

    exponent: int

    def __call__(
        self,
        like: torch.Tensor,
        shape: Sequence[int],
        seen: Sequence[Any],
        generator: torch.Generator,
    ) -> torch.Tensor:
        if is_number(like.dtype):
            narrow = torch.finfo(like.dtype).max < 2.0**64
            exponent = min(self.exponent, _GREATEST_OF_HALF) if narrow else self.exponent
            return random(like, shape, seen, generator) * 2.0**exponent
        if like.dtype is torch.bool:
            return torch.ones(shape)
        return torch.full(shape, ends(seen)[1])


def _growth(output: Any, usual: Any) -> float:
    before = magnitude(usual)
    return magnitude(output) / before if before else 1.0


def _is_finite(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or bool(value.isfinite().all())


def _mapped(inputs: InputSet, change: Callable[[Any], Any]) -> InputSet:
    args, kwargs = pytree.tree_map(change, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)


def _rounded(value: Any) -> Any:
    """Numbers with their last places changed, up and down in turn."""
    if not isinstance(value, torch.Tensor) or not is_number(value.dtype):
        return value
    step = _PLACES * torch.finfo(value.dtype).eps
    signs = 1 - 2 * (torch.arange(value.numel()).reshape(value.shape) % 2)
    wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
    return (wide * (1 + step * signs)).to(value.dtype)


# Each gives a tensor of the same dtype and sizes that lies otherwise, or None where none does.


def _transposed(value: torch.Tensor) -> torch.Tensor | None:
    if value.ndim < 2:
        return None
    return _if_other(value, value.transpose(-1, -2).contiguous().transpose(-1, -2))


def _stepped(value: torch.Tensor) -> torch.Tensor | None:
    """Between its values stand those of its reverse."""
    if value.ndim == 0 or value.shape[-1] < 2 or not value.numel():
        return None
    return torch.stack((value, value.flip(-1)), -1).flatten(-2)[..., ::2]


def _expanded(value: torch.Tensor) -> torch.Tensor | None:
    """The first along its first dimension that has several, all along it."""
    for dimension, size in enumerate(value.shape):
        if size > 1 and value.numel():
            return value.narrow(dimension, 0, 1).expand(value.shape)
    return None


def _other_format(value: torch.Tensor) -> torch.Tensor | None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if value.ndim not in formats:
        return None
    other = formats[value.ndim]
    if value.is_contiguous(memory_format=other):
        other = torch.contiguous_format
    return _if_other(value, value.contiguous(memory_format=other))


def _if_other(value: torch.Tensor, view: torch.Tensor) -> torch.Tensor | None:
    """The view, if it lies otherwise than the value."""
    places = zip(value.shape, value.stride(), view.stride(), strict=True)
    return view if any(one != other for size, one, other in places if size > 1) else None


_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "transposed": _transposed,
    "every second value": _stepped,
    "other memory format": _other_format,
}
