"""Input sets made up from a program's signature, for methods that have too few examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.inputs import InputSet
from pipeline.signature import (
    Argument,
    bind,
    bounds,
    check_inputs,
    expression,
    in_dim_order,
    integers,
    pairs,
    signature,
    sizes_of,
)

# Where a dynamic dimension of a generated input ends, and how large such an input may become.
LONGEST_DIMENSION = 4096
MOST_ELEMENTS = 1 << 22


def generate_inputs(
    program: ExportedProgram, count: int, seed: int, examples: Sequence[InputSet] = ()
) -> list[InputSet]:
    """Input sets from the signature alone, the same for the same seed.

    Floating-point tensors are standard normal, bools fair. An integer may be an index, so integer
    tensors stay between the least and greatest value that the same argument has in the examples,
    or in {0, 1} without one. Where sizes are dynamic, set 0 has the least of each (1 rather than
    0), set 1 the greatest, set 2 something between, and so on in turn; a symbol has one size
    everywhere. The greatest is the export's bound, up to LONGEST_DIMENSION, or where there is none
    the largest example: ExecuTorch plans memory for that size. Python numbers are the examples'.
    """
    if not examples and program.example_inputs is not None:
        args, kwargs = program.example_inputs
        examples = [InputSet(args, kwargs, "export")]
    for example in examples:
        check_inputs(program, example)
    given = [[value for _, value in pairs(program, example, [])] for example in examples]
    arguments = signature(program)
    symbols = _symbols(program, arguments, given)
    return [_generate(program, arguments, symbols, given, seed, n) for n in range(count)]


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
    exported = list(_shapes(arguments))
    hints = [bind([(expression(s), s.node.hint) for _, s in exported if s.node.has_hint()])]
    hints += [
        bind([(s.expression, s.given) for s in sizes_of(zip(arguments, values, strict=True))])
        for values in given
    ]
    fixed = [a.value.node.expr for a in arguments if isinstance(a.value, torch.SymInt)]
    names = {expression(size): name for name, size in reversed(exported)}
    free = {symbol for _, size in exported for symbol in expression(size).free_symbols}
    chosen = []
    for symbol in sorted(free, key=str):
        least, greatest = bounds(program, symbol)
        seen = [hint[symbol] for hint in hints if symbol in hint] or [max(least, 1)]
        if symbol in fixed:
            least = greatest = seen[-1]
        least = max(least, 1) if greatest != 0 else 0
        greatest = max(seen) if greatest is None else min(greatest, LONGEST_DIMENSION)
        chosen.append(_Symbol(symbol, least, max(least, greatest), names.get(symbol, str(symbol))))
    return chosen


def _shapes(arguments: Iterable[Argument]) -> Iterator[tuple[str, torch.SymInt]]:
    for argument in arguments:
        if isinstance(argument.value, torch.SymInt):
            yield argument.name, argument.value
        elif isinstance(argument.value, torch.Tensor):
            for dimension, size in enumerate(argument.value.shape):
                if isinstance(size, torch.SymInt):
                    yield f"{argument.name}.shape[{dimension}]", size


def _generate(
    program: ExportedProgram,
    arguments: Sequence[Argument],
    symbols: Sequence[_Symbol],
    given: Sequence[Sequence[Any]],
    seed: int,
    number: int,
) -> InputSet:
    generator = torch.Generator().manual_seed((seed << 20) + number)
    sizes = _choose(arguments, symbols, number, generator)
    leaves = [
        _value(argument.value, sizes, [values[index] for values in given], generator)
        for index, argument in enumerate(arguments)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    shown = ", ".join(f"{s.shown}={sizes[s.symbol]}" for s in symbols)
    return InputSet(args, kwargs, f"generated {number} (seed {seed}){shown and ': '}{shown}")


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
    while _elements(arguments, sizes) > MOST_ELEMENTS:
        s = max(symbols, key=lambda s: sizes[s.symbol] - s.least)
        if sizes[s.symbol] == s.least:
            break
        sizes[s.symbol] = max(s.least, sizes[s.symbol] // 2)
    return sizes


def _elements(arguments: Iterable[Argument], sizes: dict[sympy.Symbol, int]) -> int:
    tensors = [a.value for a in arguments if isinstance(a.value, torch.Tensor)]
    return max((torch.Size(_shape(t, sizes)).numel() for t in tensors), default=0)


def _shape(tensor: torch.Tensor, sizes: dict[sympy.Symbol, int]) -> list[int]:
    return [int(expression(size).xreplace(integers(sizes))) for size in tensor.shape]


def _value(
    like: Any, sizes: dict[sympy.Symbol, int], seen: Sequence[Any], generator: torch.Generator
) -> Any:
    if isinstance(like, torch.SymInt):
        return int(expression(like).xreplace(integers(sizes)))
    if not isinstance(like, torch.Tensor):
        return like
    shape = _shape(like, sizes)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        kind = torch.complex64 if like.dtype.is_complex else torch.float32
        value = torch.randn(shape, dtype=kind, generator=generator)
    elif like.dtype is torch.bool:
        value = torch.rand(shape, generator=generator) < 0.5
    else:
        ends = [int(end) for tensor in seen if tensor.numel() for end in tensor.aminmax()] or [0, 1]
        top = min(max(ends) + 1, torch.iinfo(torch.int64).max)
        value = torch.randint(min(ends), top, shape, generator=generator)
    return in_dim_order(value.to(like.dtype), like)
