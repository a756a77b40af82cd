"""Generate random input sets from a program's signature, for methods with too few examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from pipeline.program.argument_specs import Argument, bind_sizes, bind_symbols
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
_MOST_OF_HALF = (
    5  # a power of two: beyond a tenth of what 16 bits hold, little can be computed
)


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
    generator = Generator(program, seed, examples, shapes)
    return [generator.set(number) for number in range(count)]


# By the name of an input, the shapes that it may have; the first of every list go together.
Shapes = Mapping[str, Sequence[Sequence[int]]]
# A tensor of a shape for an argument: given the argument's fake tensor, the values that it has in
# the examples, and where random numbers come from.
Fill = Callable[
    [torch.Tensor, Sequence[int], Sequence[Any], torch.Generator], torch.Tensor
]


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
        self._arguments = signature(program)
        example_leaves = []
        for example in examples:
            pairs, _ = pair_leaves(program, example)
            example_leaves.append([value for _, value in pairs])
        self._example_values = list(zip(*example_leaves, strict=True))  # by argument
        self._size_ranges = _size_ranges(program, self._arguments, example_leaves)
        # Where a person finds a symbol in the signature.
        self._size_names: dict[sympy.Expr, str] = {}
        for name, size in iter_dynamic_sizes(self._arguments):
            self._size_names.setdefault(expression(size), name)
        self._allowed_sizes = _allowed_sizes(program, shapes) if shapes else []

    @property
    def is_dynamic(self) -> bool:
        """Tell whether there are sizes to choose."""
        if self._allowed_sizes:
            return len(self._allowed_sizes) > 1
        return any(least < greatest for least, greatest in self._size_ranges.values())

    def set(
        self,
        number: int,
        sizes: int | None = None,
        fill: Fill | None = None,
        note: str = "",
    ) -> InputSet:
        """Make the input set of a number.

        Args:
            sizes: 0 takes the least, 1 the greatest, 2 some between; by default the number decides.
            fill: makes the tensors, by default random ones.
            note: is added to the origin.
        """
        # Shifted, so that the sets of one seed aren't those of the next, a place further.
        generator = torch.Generator().manual_seed((self.seed << 20) + number)
        if sizes is None:
            sizes = number
        size_by_symbol = _choose_sizes(
            self._arguments, self._size_ranges, sizes, generator
        )
        if self._allowed_sizes:
            drawn = int(
                torch.randint(len(self._allowed_sizes), (), generator=generator)
            )
            place = (0, -1, drawn)[sizes % 3]
            size_by_symbol |= self._allowed_sizes[place]
        leaves = []
        for index, argument in enumerate(self._arguments):
            examples = self._example_values[index] if self._example_values else ()
            leaves.append(
                _value(argument.value, size_by_symbol, examples, generator, fill)
            )
        notes = [note] if note else []
        for symbol in self._size_ranges:
            name = self._size_names.get(symbol, str(symbol))
            notes.append(f"{name}={size_by_symbol[symbol]}")
        origin = f"generated {number} (seed {self.seed})"
        if notes:
            origin += f": {', '.join(notes)}"
        return nest_leaves(self.program, leaves, origin, generated=True)


def _size_ranges(
    program: ExportedProgram,
    arguments: Sequence[Argument],
    example_leaves: Sequence[Sequence[Any]],
) -> dict[sympy.Symbol, tuple[int, int]]:
    """Return the least and the greatest size to choose for each symbol."""
    dynamic_sizes = list(iter_dynamic_sizes(arguments))
    hints = [
        (expression(s), s.node.hint) for _, s in dynamic_sizes if s.node.has_hint()
    ]
    bindings = [bind_symbols(hints)]
    signature_leaves = leaf_signature(program)
    for leaves in example_leaves:
        bindings.append(bind_sizes(zip(signature_leaves, leaves, strict=True)))
    # Python numbers are those of the examples.
    fixed = [a.value.node.expr for a in arguments if isinstance(a.value, torch.SymInt)]
    free_symbols: set[sympy.Symbol] = set()
    for _, size in dynamic_sizes:
        free_symbols |= expression(size).free_symbols
    ranges = {}
    for symbol in sorted(free_symbols, key=str):
        least, greatest = bounds(program, symbol)
        examples = [int(binding[symbol]) for binding in bindings if symbol in binding]
        if not examples:
            examples = [max(least, 1)]
        if symbol in fixed:
            least = greatest = examples[-1]
        if greatest != 0:
            least = max(least, 1)
        else:
            least = 0
        if greatest is None:
            greatest = max(examples)
        else:
            greatest = min(greatest, LONGEST_DIMENSION)
        ranges[symbol] = least, max(least, greatest)
    return ranges


def _allowed_sizes(
    program: ExportedProgram, shapes: Shapes
) -> list[dict[sympy.Symbol, int]]:
    """Return the sizes of the symbols for each listed shape, from the least to the greatest.

    Shapes that the program itself refuses are left out: a package may take a size of 1 where torch
    exports at least 2.
    """
    arguments = [
        argument for argument in leaf_signature(program) if argument.name in shapes
    ]
    number_of_shapes = len(next(iter(shapes.values())))
    allowed = []
    for place in range(number_of_shapes):
        pairs = []
        for argument in arguments:
            shape = list(shapes[argument.name][place])
            pairs.append((argument, torch.empty(shape, device="meta")))
        sizes = {symbol: int(size) for symbol, size in bind_sizes(pairs).items()}
        if all(size >= bounds(program, symbol)[0] for symbol, size in sizes.items()):
            allowed.append(sizes)
    return sorted(allowed, key=lambda sizes: math.prod(sizes.values()))


def _choose_sizes(
    arguments: Sequence[Argument],
    ranges: Mapping[sympy.Symbol, tuple[int, int]],
    number: int,
    generator: torch.Generator,
) -> dict[sympy.Symbol, int]:
    sizes = {}
    for symbol, (least, greatest) in ranges.items():
        low = least
        high = greatest
        if high - low > 1:
            low = low + 1
            high = high - 1
        drawn = int(torch.randint(low, high + 1, (), generator=generator))
        sizes[symbol] = (least, greatest, drawn)[number % 3]
    dynamic = [a.value for a in arguments if _has_dynamic_shape(a.value)]
    # Halve the symbol with the most room, until every input is small enough, or none has room.
    while sizes and any(math.prod(_shape(t, sizes)) > MOST_ELEMENTS for t in dynamic):
        symbol = max(ranges, key=lambda s: sizes[s] - ranges[s][0])
        least, _ = ranges[symbol]
        if sizes[symbol] == least:
            break
        sizes[symbol] = max(least, sizes[symbol] // 2)
    return sizes


def _has_dynamic_shape(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return any(isinstance(size, torch.SymInt) for size in value.shape)


def _shape(tensor: torch.Tensor, sizes: dict[sympy.Symbol, int]) -> list[int]:
    return [_evaluate(size, sizes) for size in tensor.shape]


def _evaluate(size: int | torch.SymInt, sizes: dict[sympy.Symbol, int]) -> int:
    values = {symbol: sympy.Integer(number) for symbol, number in sizes.items()}
    return int(expression(size).xreplace(values))


def _value(
    like: Any,
    sizes: dict[sympy.Symbol, int],
    examples: Sequence[Any],
    generator: torch.Generator,
    fill: Fill | None,
) -> Any:
    if isinstance(like, torch.SymInt):
        return _evaluate(like, sizes)
    if not isinstance(like, torch.Tensor):
        return like
    value = (fill or fill_random)(
        like,
        _shape(like, sizes),
        examples,
        generator,
    )
    return in_dim_order(value.to(like.dtype), like)


def is_floating(dtype: torch.dtype) -> bool:
    """Tell whether a dtype is of floating-point or complex numbers, which are no indices."""
    return dtype.is_floating_point or dtype.is_complex


def fill_random(
    like: torch.Tensor,
    shape: Sequence[int],
    examples: Sequence[Any],
    generator: torch.Generator,
) -> torch.Tensor:
    """Return a random tensor as `generate_inputs` makes them."""
    if is_floating(like.dtype):
        if like.dtype.is_complex:
            kind = torch.complex64
        else:
            kind = torch.float32
        return torch.randn(shape, dtype=kind, generator=generator)
    if like.dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    least, greatest = integer_range(examples)
    top = min(greatest + 1, torch.iinfo(torch.int64).max)
    return torch.randint(least, top, shape, generator=generator)


def fill_zeros(
    like: torch.Tensor,
    shape: Sequence[int],
    examples: Sequence[Any],
    generator: torch.Generator,
) -> torch.Tensor:
    """Make numbers that are 0 and bools that are false; integers as near to 0 as the examples'."""
    is_index = not is_floating(like.dtype) and like.dtype is not torch.bool
    least, greatest = integer_range(examples) if is_index else (0, 0)
    return torch.full(shape, min(max(0, least), greatest))


def fill_large(
    exponent: int,
    like: torch.Tensor,
    shape: Sequence[int],
    examples: Sequence[Any],
    generator: torch.Generator,
) -> torch.Tensor:
    """Make random numbers times 2 ** exponent, and the greatest integer of the examples."""
    if is_floating(like.dtype):
        narrow = torch.finfo(like.dtype).max < 2.0**64
        if narrow:
            power = min(exponent, _MOST_OF_HALF)
        else:
            power = exponent
        return fill_random(like, shape, examples, generator) * 2.0**power
    return torch.full(
        shape,
        1 if like.dtype is torch.bool else integer_range(examples)[1],
    )


def integer_range(examples: Sequence[Any]) -> tuple[int, int]:
    """Return the least and greatest integer of the examples; 0 and 1 without any."""
    ends: list[int] = []
    for tensor in examples:
        if tensor.numel():
            ends += map(int, tensor.aminmax())
    if ends:
        return (min(ends), max(ends))
    return (0, 1)
