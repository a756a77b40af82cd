"""What a program takes: its signature, and whether an input set fits it.

An input set is checked before anything runs it: ExecuTorch's runtime reads a tensor of another
layout, or of a wrong size that fits into the planned memory, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from pipeline.program.inputs import InputSet, kind_of
from pipeline.store.errors import PipelineError


@dataclass(frozen=True)
class Argument:
    """A leaf of a program's signature. `name` is what a person writes: `states[0]['key']`;
    `value` is a fake tensor, a SymInt, or the constant that the program was exported with."""

    name: str
    value: Any


def signature(program: ExportedProgram) -> list[Argument]:
    """The user's inputs of a program, flat, in the order of its placeholders."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    kept = [s.arg for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    return [
        Argument(name, arg.value if isinstance(arg, ConstantArgument) else values[arg.name])
        for name, arg in zip(_names(program), kept, strict=True)
    ]


def argument_names(program: ExportedProgram) -> tuple[list[str], list[str]]:
    """The names of its arguments: the positional ones, and those that are given by keyword."""
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    called = program.module_call_graph[0].signature if program.module_call_graph else None
    known = (called.forward_arg_names if called is not None else None) or []
    return [*known[: len(args)], *(f"args[{i}]" for i in range(len(known), len(args)))], [*kwargs]


def _names(program: ExportedProgram) -> Iterator[str]:
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    names = [name for kind in argument_names(program) for name in kind]
    for name, tree in zip(names, [*args, *kwargs.values()], strict=True):
        for path, _ in pytree.tree_flatten_with_path(tree)[0]:
            yield name + pytree.keystr(path)


def check_inputs(program: ExportedProgram, inputs: InputSet, method: str = "forward") -> None:
    """Raises PipelineError where a program does not take an input set: one line a mistake, such
    as `encode: example 0: argument 'tokens': dtype float32, must be int64`."""
    mistakes: list[str] = []
    leaves = list(pairs(program, inputs, mistakes))
    mistakes += [f"argument '{a.name}': {m}" for a, v in leaves for m in _leaf_mistakes(a.value, v)]
    mistakes += _size_mistakes(program, leaves)
    if mistakes:
        raise PipelineError("\n".join(f"{method}: {inputs.origin}: {m}" for m in mistakes))


def flatten(program: ExportedProgram, inputs: InputSet) -> list[Any]:
    """Copies of the leaves of a checked input set, in the order of the program's placeholders,
    each tensor with the dim order that the program was exported with."""
    return [in_dim_order(value, a.value) for a, value in pairs(program, inputs, [])]


def flat_as_given(program: ExportedProgram, inputs: InputSet) -> list[Any]:
    """As `flatten`, but each copy lies in memory as what is given does: with its strides, and with
    whatever stands between its values."""
    return [_as_it_lies(value) for _, value in pairs(program, inputs, [])]


def _as_it_lies(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    storage = value.untyped_storage().clone()
    own = torch.empty(0, dtype=value.dtype)
    return own.set_(storage, value.storage_offset(), value.shape, value.stride())


def as_exported(program: ExportedProgram, inputs: InputSet) -> InputSet:
    """A copy of a checked input set, in the layout that the program was exported with."""
    leaves = flatten(program, inputs)
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return InputSet(args, kwargs, inputs.origin)


def in_dim_order(value: Any, like: Any) -> Any:
    """A copy of a tensor, laid out in the dim order of another one of its rank."""
    return laid_out(value, like.dim_order()) if isinstance(value, torch.Tensor) else value


def laid_out(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A copy of a tensor, its dimensions from the outermost to the innermost in this order."""
    order = list(order)
    plain = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return plain.permute([order.index(dimension) for dimension in range(len(order))])


def pairs(
    program: ExportedProgram, inputs: InputSet, mistakes: list[str]
) -> Iterator[tuple[Argument, Any]]:
    """Each argument of the signature with what is given for it, in the signature's order; where
    the given structure differs, a mistake instead."""
    args, kwargs = pytree.tree_unflatten(signature(program), program.call_spec.in_spec)
    if len(args) != len(inputs.args):
        mistakes.append(f"{len(inputs.args)} positional arguments, must be {len(args)}")
    for name in sorted(inputs.kwargs.keys() - kwargs.keys()):
        mistakes.append(f"argument '{name}': unknown keyword; known: {', '.join(kwargs) or 'none'}")
    for expected, given in zip(args, inputs.args, strict=False):
        yield from walk(expected, given, mistakes)
    for name, expected in kwargs.items():
        if name in inputs.kwargs:
            yield from walk(expected, inputs.kwargs[name], mistakes)
        else:
            mistakes.append(f"argument '{name}': missing, must be given by keyword")


def walk(expected: Any, given: Any, mistakes: list[str]) -> Iterator[tuple[Argument, Any]]:
    """The leaves of a tree of Arguments, each with what a tree of values has in its place."""
    if isinstance(expected, Argument):
        yield expected, given
        return
    ordered = isinstance(expected, (tuple, list))
    fits = type(given) is type(expected) and len(given) == len(expected)
    if not fits or not (ordered or given.keys() == expected.keys()):
        name = next((a.name for a in pytree.tree_leaves(expected)), "")
        keys = "" if ordered else f" with the keys {', '.join(map(str, expected))}"
        mistakes.append(f"argument '{name}': {kind_of(given)}, must be {kind_of(expected)}{keys}")
        return
    for key in range(len(expected)) if ordered else expected:
        yield from walk(expected[key], given[key], mistakes)


def _leaf_mistakes(expected: Any, given: Any) -> Iterator[str]:
    """What is wrong with a leaf, sizes aside."""
    if isinstance(expected, torch.Tensor):
        yield from tensor_mistakes(given, expected.dtype, expected.ndim)
    elif isinstance(expected, torch.SymInt):
        if type(given) is not int:
            yield f"{kind_of(given)}, must be an int"
    else:
        yield from constant_mistakes(given, expected)


def tensor_mistakes(given: Any, dtype: torch.dtype, rank: int) -> Iterator[str]:
    """What is wrong with what stands where a tensor must, sizes aside."""
    if not isinstance(given, torch.Tensor):
        yield f"{kind_of(given)}, must be a tensor"
        return
    if given.dtype != dtype:
        yield f"dtype {_plain(given.dtype)}, must be {_plain(dtype)}"
    if given.ndim != rank:
        yield f"rank {given.ndim}, must be {rank}"


def constant_mistakes(given: Any, expected: Any) -> Iterator[str]:
    if type(given) is not type(expected) or given != expected:
        shown = kind_of(given) if isinstance(given, torch.Tensor) else repr(given)
        yield f"{shown}, must be {expected!r}, the value that the program was exported with"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Size:
    """A size, or a dynamic int, that an input set gives for an expression of the signature."""

    shown: str
    expression: sympy.Expr
    given: int


def sizes_of(leaves: Iterable[tuple[Argument, Any]]) -> Iterator[Size]:
    """The sizes and dynamic ints of input leaves, each with what the signature says of it."""
    for argument, given in leaves:
        if isinstance(argument.value, torch.SymInt):
            if type(given) is int:
                shown = f"argument '{argument.name}': {given}"
                yield Size(shown, expression(argument.value), given)
        elif isinstance(argument.value, torch.Tensor) and isinstance(given, torch.Tensor):
            # A wrong rank is a mistake of its own, and leaves no sizes to compare.
            shape = argument.value.shape if given.ndim == argument.value.ndim else ()
            for dimension, size in enumerate(shape):
                actual = given.shape[dimension]
                shown = f"argument '{argument.name}': size {actual} at dimension {dimension}"
                yield Size(shown, expression(size), actual)


def expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def bind(sizes: Sequence[tuple[sympy.Expr, int]]) -> dict[sympy.Symbol, int]:
    """The symbols' values: where a symbol stands alone, then where it is the only unknown."""
    bound = {e: given for e, given in reversed(sizes) if isinstance(e, sympy.Symbol)}
    for expr, given in sizes:
        unknown = expr.free_symbols - bound.keys()
        if len(unknown) == 1 and expr.is_polynomial(*unknown):
            symbol = unknown.pop()
            solutions = sympy.solve(expr.xreplace(integers(bound)) - given, symbol)
            if solutions and solutions[0].is_Integer:
                bound[symbol] = int(solutions[0])
    return bound


def integers(bound: dict[sympy.Symbol, int]) -> dict[sympy.Symbol, sympy.Integer]:
    """As sympy's `xreplace` wants them."""
    return {symbol: sympy.Integer(value) for symbol, value in bound.items()}


def bounds(program: ExportedProgram, expr: sympy.Expr) -> tuple[int, int | None]:
    """The least and the greatest value that a program takes for a size; None has no limit."""
    if expr.is_Integer:
        return int(expr), int(expr)
    allowed = program.range_constraints.get(expr)
    if allowed is None:
        return 0, None
    lower, upper = allowed.lower, allowed.upper
    return int(lower) if lower.is_Integer else 0, int(upper) if upper.is_Integer else None


def _size_mistakes(
    program: ExportedProgram, leaves: Iterable[tuple[Argument, Any]]
) -> Iterator[str]:
    return size_mistakes(list(sizes_of(leaves)), lambda expr: bounds(program, expr))


def size_mistakes(
    sizes: Sequence[Size], limits: Callable[[sympy.Expr], tuple[int, int | None]]
) -> Iterator[str]:
    """Where sizes do not fit together, or are beyond what `limits` says of an expression."""
    bound = bind([(size.expression, size.given) for size in sizes])
    for size in sizes:
        value = size.expression.xreplace(integers(bound))
        least, greatest = limits(size.expression)
        if value.is_Integer and int(value) != size.given:
            names = sorted(f"{s} = {bound[s]}" for s in size.expression.free_symbols)
            why = f" ({size.expression}, where {', '.join(names)})" if names else ""
            yield f"{size.shown}, must be {value}{why}"
        elif len(value.free_symbols) == 1 and value.is_polynomial():
            yield f"{size.shown}, must be {value} for a whole number"
        elif size.given < least or (greatest is not None and size.given > greatest):
            limit = "" if greatest is None else f" and at most {greatest}"
            yield f"{size.shown}, must be at least {least}{limit}"
