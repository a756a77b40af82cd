"""Makes random input sets from a program's signature, for methods that have too few examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from pipeline.program.argument_specs import Argument, bind_symbols, iter_sizes
from pipeline.program.inputs import InputSet
from pipeline.program.signature import (
    bounds,
    check_inputs,
    expression,
    in_dim_order,
    iter_dynamic_sizes,
    leaf_signature,
    nest_leaves,
    pair_leaves,
    signature,
)

# Where a dynamic dimension of a generated input ends, and how large such an input may become.
LONGEST_DIMENSION = 4096
MOST_ELEMENTS = 1 << 22
_MOST_OF_HALF = 5  # a power of two: beyond a tenth of what 16 bits hold, little can be computed


def generate_inputs(
    program: ExportedProgram,
    count: int,
    seed: int,
    examples: Sequence[InputSet] = (),
    shapes: Shapes | None = None,
) -> list[InputSet]:
    """Make input sets from the signature alone, the same for the same seed.

    Floating-point tensors are standard normal, bools fair. An integer may be an index, so integer
    tensors stay between the least and greatest value that the same argument has in the examples,
    or in {0, 1} without one. Where sizes are dynamic, set 0 has the least of each (1 rather than
    0), set 1 the greatest, set 2 something between, and so on in turn; a symbol has one size
    everywhere. The greatest is the export's bound, up to LONGEST_DIMENSION, or where there is none
    the largest example: ExecuTorch plans memory for that size. Python numbers are the examples'.
    `shapes` are the only ones that inputs may have, instead of all sizes.
    """
    made = Generator(program, seed, examples, shapes)
    return [made.set(number) for number in range(count)]


# By the name of an input, the shapes that it may have; the first of every list go together.
Shapes = Mapping[str, Sequence[Sequence[int]]]
# A tensor of a shape for an argument: given the argument's fake tensor, the values that it has in
# the examples, and where random numbers come from.
Fill = Callable[[torch.Tensor, Sequence[int], Sequence[Any], torch.Generator], torch.Tensor]


class Generator:
    """Makes input sets for a program. Raises PipelineError for examples that do not fit it."""

    def __init__(
        self,
        program: ExportedProgram,
        seed: int,
        examples: Sequence[InputSet] = (),
        shapes: Shapes | None = None,
    ) -> None:
        if not examples and program.example_inputs is not None:
            args, kwargs = program.example_inputs
            examples = [InputSet(args, kwargs, "export")]
        for example in examples:
            check_inputs(program, example)
        self.program = program
        self.seed = seed
        self._given = [[value for _, value in pair_leaves(program, each, [])] for each in examples]
        self._arguments = signature(program)
        self._symbols = _symbols(program, self._arguments, self._given)
        self._listed = _listed_sizes(program, shapes) if shapes else []

    @property
    def is_dynamic(self) -> bool:
        """Tell whether there are sizes to choose."""
        if self._listed:
            return len(self._listed) > 1
        return any(symbol.least < symbol.greatest for symbol in self._symbols)

    def set(
        self, number: int, sizes: int | None = None, fill: Fill | None = None, note: str = ""
    ) -> InputSet:
        """Make the input set of a number.

        Args:
            sizes: 0 takes the least, 1 the greatest, 2 some between; by default the number decides.
            fill: makes the tensors, by default random ones.
            note: is added to the origin.
        """
        generator = torch.Generator().manual_seed((self.seed << 20) + number)
        which = number if sizes is None else sizes
        chosen = _choose(self._arguments, self._symbols, which, generator)
        if self._listed:
            drawn = int(torch.randint(len(self._listed), (), generator=generator))
            chosen |= self._listed[(0, -1, drawn)[which % 3]]
        leaves = [
            _value(argument.value, chosen, [v[index] for v in self._given], generator, fill)
            for index, argument in enumerate(self._arguments)
        ]
        notes = [note, *(f"{s.shown}={chosen[s.symbol]}" for s in self._symbols)]
        shown = ", ".join(filter(None, notes))
        origin = f"generated {number} (seed {self.seed}){shown and ': '}{shown}"
        return nest_leaves(self.program, leaves, origin, generated=True)


@dataclass(frozen=True)
class _Symbol:
    """The sizes to choose from for a symbol, and where a person finds it in the signature."""

    symbol: sympy.Symbol
    least: int
    greatest: int
    shown: str


def _symbols(
    program: ExportedProgram, arguments: Sequence[Argument], given: Sequence[Sequence[Any]]
) -> list[_Symbol]:
    exported = list(iter_dynamic_sizes(arguments))
    leaves = leaf_signature(program)
    hints = [bind_symbols([(expression(s), s.node.hint) for _, s in exported if s.node.has_hint()])]
    hints += [
        bind_symbols([(s.expression, s.given) for s in iter_sizes(zip(leaves, own, strict=True))])
        for own in given
    ]
    fixed = [a.value.node.expr for a in arguments if isinstance(a.value, torch.SymInt)]
    names = {expression(size): name for name, size in reversed(exported)}
    free = {symbol for _, size in exported for symbol in expression(size).free_symbols}
    chosen = []
    for symbol in sorted(free, key=str):
        least, greatest = bounds(program, symbol)
        seen = [int(hint[symbol]) for hint in hints if symbol in hint] or [max(least, 1)]
        if symbol in fixed:
            least = greatest = seen[-1]
        least = max(least, 1) if greatest != 0 else 0
        greatest = max(seen) if greatest is None else min(greatest, LONGEST_DIMENSION)
        chosen.append(_Symbol(symbol, least, max(least, greatest), names.get(symbol, str(symbol))))
    return chosen


def _listed_sizes(program: ExportedProgram, shapes: Shapes) -> list[dict[sympy.Symbol, int]]:
    """Return the sizes of the symbols for each of the listed shapes that the program itself takes,
    from the least to the greatest: a package may take a size of 1 where torch exports 2 at least.
    """
    listed = []
    for place in range(len(next(iter(shapes.values())))):
        pairs = [
            (argument, torch.empty(list(shapes[argument.name][place]), device="meta"))
            for argument in leaf_signature(program)
            if argument.name in shapes
        ]
        bound = bind_symbols([(size.expression, size.given) for size in iter_sizes(pairs)])
        sizes = {symbol: int(size) for symbol, size in bound.items()}
        if all(size >= bounds(program, symbol)[0] for symbol, size in sizes.items()):
            listed.append(sizes)
    return sorted(listed, key=lambda sizes: math.prod(sizes.values()))


def _choose(
    arguments: Sequence[Argument],
    symbols: Sequence[_Symbol],
    number: int,
    generator: torch.Generator,
) -> dict[sympy.Symbol, int]:
    sizes = {}
    for s in symbols:
        between = s.greatest - s.least > 1
        low, high = (s.least + 1, s.greatest - 1) if between else (s.least, s.greatest)
        drawn = int(torch.randint(low, high + 1, (), generator=generator))
        sizes[s.symbol] = (s.least, s.greatest, drawn)[number % 3]
    tensors = [a.value for a in arguments if isinstance(a.value, torch.Tensor)]
    dynamic = [t for t in tensors if any(isinstance(size, torch.SymInt) for size in t.shape)]
    while sizes and any(math.prod(_shape(t, sizes)) > MOST_ELEMENTS for t in dynamic):
        s = max(symbols, key=lambda s: sizes[s.symbol] - s.least)
        if sizes[s.symbol] == s.least:
            break
        sizes[s.symbol] = max(s.least, sizes[s.symbol] // 2)
    return sizes


def _shape(tensor: torch.Tensor, sizes: dict[sympy.Symbol, int]) -> list[int]:
    return [_evaluate(size, sizes) for size in tensor.shape]


def _evaluate(size: int | torch.SymInt, sizes: dict[sympy.Symbol, int]) -> int:
    return int(expression(size).xreplace({s: sympy.Integer(n) for s, n in sizes.items()}))


def _value(
    like: Any,
    sizes: dict[sympy.Symbol, int],
    seen: Sequence[Any],
    generator: torch.Generator,
    fill: Fill | None,
) -> Any:
    if isinstance(like, torch.SymInt):
        return _evaluate(like, sizes)
    if not isinstance(like, torch.Tensor):
        return like
    value = (fill or fill_random)(like, _shape(like, sizes), seen, generator)
    return in_dim_order(value.to(like.dtype), like)


def is_floating(dtype: torch.dtype) -> bool:
    """Tell whether a dtype is of floating-point or complex numbers, which are no indices."""
    return dtype.is_floating_point or dtype.is_complex


def fill_random(
    like: torch.Tensor, shape: Sequence[int], seen: Sequence[Any], generator: torch.Generator
) -> torch.Tensor:
    """Return a random tensor as `generate_inputs` makes them."""
    if is_floating(like.dtype):
        kind = torch.complex64 if like.dtype.is_complex else torch.float32
        return torch.randn(shape, dtype=kind, generator=generator)
    if like.dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    least, greatest = integer_range(seen)
    top = min(greatest + 1, torch.iinfo(torch.int64).max)
    return torch.randint(least, top, shape, generator=generator)


def fill_zeros(
    like: torch.Tensor, shape: Sequence[int], seen: Sequence[Any], generator: torch.Generator
) -> torch.Tensor:
    """Make numbers that are 0 and bools that are false; integers as near to 0 as the examples'."""
    is_index = not is_floating(like.dtype) and like.dtype is not torch.bool
    least, greatest = integer_range(seen) if is_index else (0, 0)
    return torch.full(shape, min(max(0, least), greatest))


def fill_large(
    exponent: int,
    like: torch.Tensor,
    shape: Sequence[int],
    seen: Sequence[Any],
    generator: torch.Generator,
) -> torch.Tensor:
    """Make random numbers times 2 ** exponent, and the greatest integer of the examples."""
    if is_floating(like.dtype):
        narrow = torch.finfo(like.dtype).max < 2.0**64
        power = min(exponent, _MOST_OF_HALF) if narrow else exponent
        return fill_random(like, shape, seen, generator) * 2.0**power
    return torch.full(shape, 1 if like.dtype is torch.bool else integer_range(seen)[1])


def integer_range(seen: Sequence[Any]) -> tuple[int, int]:
    """Return the least and greatest integer of the examples; 0 and 1 without any."""
    found = [int(end) for tensor in seen if tensor.numel() for end in tensor.aminmax()] or [0, 1]
    return min(found), max(found)
