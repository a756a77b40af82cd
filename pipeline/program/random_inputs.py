"""Generates random input sets from a program's signature, for methods with too few examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from pipeline.moments import call_all
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

# The greatest size of a dynamic dimension of a generated input, and the most elements of an input
# with dynamic dimensions.
LONGEST_DIMENSION = 4096
MOST_ELEMENTS = 1 << 22
# An exponent of 2: beyond a tenth of float16's range, little can be computed.
_MOST_OF_HALF = 5


def generate_inputs(
    program: ExportedProgram,
    count: int,
    seed: int,
    examples: Sequence[InputSet] = (),
    shapes: Shapes | None = None,
) -> list[InputSet]:
    """Generate input sets from the signature; the same seed gives the same sets.

    Floating-point tensors are standard normal; bools are true with probability 1/2. An integer may
    be an index, so integer tensors stay between the least and greatest value of the same argument
    in the examples, or in {0, 1} without examples; features may widen this range. If sizes are
    dynamic, set 0 has the least sizes (but 1 rather than 0), set 1 the greatest, set 2 random sizes
    in between, and so on in turn; a symbol has the same size everywhere. The greatest size is the
    export's bound, capped at LONGEST_DIMENSION, or without a bound the largest example's, since
    ExecuTorch plans memory for that size. Python numbers are taken from the examples.

    Args:
        shapes: the only shapes that inputs may have; by default, all sizes are allowed.
    """
    generator = Generator(program, seed, examples, shapes)
    return [generator.set(number) for number in range(count)]


# The allowed shapes of each input, by name. Shapes at the same index go together.
Shapes = Mapping[str, Sequence[Sequence[int]]]
# Makes a tensor for an argument, given the argument's fake tensor, the shape to make, the values of
# the argument in the examples, and a generator of random numbers.
Fill = Callable[
    [torch.Tensor, Sequence[int], Sequence[Any], torch.Generator], torch.Tensor
]


class Generator:
    """A generator of input sets. Raises PipelineError if an example doesn't fit the program."""

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
        self._example_values = list(zip(*example_leaves, strict=True))  # per argument
        list(call_all("widen_integers", program, self._example_values))
        self._size_ranges = _size_ranges(program, self._arguments, example_leaves)
        # A readable name for each symbol: the first place of the signature where it occurs.
        self._size_names: dict[sympy.Expr, str] = {}
        for name, size in iter_dynamic_sizes(self._arguments):
            self._size_names.setdefault(expression(size), name)
        self._allowed_sizes = _allowed_sizes(program, shapes) if shapes else []

    @property
    def is_dynamic(self) -> bool:
        """Whether there are sizes to choose."""
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
        """Generate the input set with this number.

        Args:
            sizes: modulo 3, 0 takes the least sizes, 1 the greatest, and 2 random ones in between;
                by default the set's number.
            fill: makes the tensors; by default they are random.
            note: added to the origin.
        """
        # The seed is shifted so that set 1 of one seed doesn't equal set 0 of the next seed.
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
    # Python numbers are taken from the examples.
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
        least = max(least, 1) if greatest != 0 else 0
        if greatest is None:
            greatest = max(examples)
        else:
            greatest = min(greatest, LONGEST_DIMENSION)
        ranges[symbol] = least, max(least, greatest)
    return ranges


def _allowed_sizes(
    program: ExportedProgram, shapes: Shapes
) -> list[dict[sympy.Symbol, int]]:
    """Return the symbols' sizes for each listed shape, ordered by the product of the sizes.

    Shapes that the program itself refuses are left out: a package may accept a size of 1 for which
    torch's export requires at least 2.
    """
    arguments = [
        argument for argument in leaf_signature(program) if argument.name in shapes
    ]
    allowed = []
    for place in range(len(next(iter(shapes.values())))):
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
        inside = greatest - least > 1  # without the ends
        drawn = int(
            torch.randint(
                least + inside, greatest + 1 - inside, (), generator=generator
            )
        )
        sizes[symbol] = (least, greatest, drawn)[number % 3]
    dynamic = [a.value for a in arguments if _has_dynamic_shape(a.value)]
    # Halve the symbol that is furthest above its least size, until every input is small enough or
    # no symbol can shrink.
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
    return in_dim_order(value.to(like.dtype), Argument("", like))


def is_floating(dtype: torch.dtype) -> bool:
    """Return whether a dtype is floating-point or complex, and so can't hold indices."""
    return dtype.is_floating_point or dtype.is_complex


def fill_random(
    like: torch.Tensor,
    shape: Sequence[int],
    examples: Sequence[Any],
    generator: torch.Generator,
) -> torch.Tensor:
    """Return a random tensor, distributed as `generate_inputs` describes."""
    if is_floating(like.dtype):
        kind = torch.complex64 if like.dtype.is_complex else torch.float32
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
    """Return a tensor of zeros (or False); integers are the nearest to 0 in the examples' range."""
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
    """Return random floats times 2 ** exponent, or the greatest integer of the examples.

    The exponent is capped for dtypes of small range, such as float16. Bools are true.
    """
    if is_floating(like.dtype):
        narrow = torch.finfo(like.dtype).max < 2.0**64
        power = min(exponent, _MOST_OF_HALF) if narrow else exponent
        return fill_random(like, shape, examples, generator) * 2.0**power
    return torch.full(
        shape,
        1 if like.dtype is torch.bool else integer_range(examples)[1],
    )


def integer_range(examples: Sequence[Any]) -> tuple[int, int]:
    """Return the least and greatest integer of the examples, or 0 and 1 without examples."""
    ends: list[int] = []
    for tensor in examples:
        if tensor.numel():
            ends += map(int, tensor.aminmax())
    if ends:
        return (min(ends), max(ends))
    return (0, 1)
