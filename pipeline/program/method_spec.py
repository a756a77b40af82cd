"""What a method takes and gives as its source's author wrote it, as a record without the program.

A `.pte` knows places, dtypes and greatest sizes. Names of arguments, nesting, values that the
export fixed, which sizes are equal and which inputs a method changes stand in this record, which
compiling makes and the manifest beside a package keeps.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._sympy import functions

from pipeline.program.inputs import kind_of
from pipeline.program.signature import (
    Argument,
    Size,
    argument_names,
    bind,
    bounds,
    constant_mistakes,
    expression,
    integers,
    laid_out,
    signature,
    size_mistakes,
    tensor_mistakes,
    walk,
)
from pipeline.store.errors import PipelineError

# Of torch's own.
_TORCH = (
    "CeilToInt",
    "CleanDiv",
    "FloorDiv",
    "FloorToInt",
    "IntTrueDiv",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "PythonMod",
    "ToFloat",
    "TruncToInt",
)
# What sizes are made of, beside whole numbers and symbols. No other function can stand in a record.
FUNCTIONS: Mapping[str, Callable[..., sympy.Expr]] = {
    "Add": sympy.Add,
    "Mul": sympy.Mul,
    "Pow": sympy.Pow,
    "Rational": sympy.Rational,
    **{name: getattr(functions, name) for name in _TORCH},
}


@dataclass(frozen=True)
class Extent:
    """A size: its expression, None for any, and the least and greatest value that it may have."""

    expression: sympy.Expr | None
    least: int = 0
    greatest: int | None = None


@dataclass(frozen=True)
class TensorSpec:
    """`order` are its dimensions from the outermost to the innermost; of an output nothing reads
    it."""

    dtype: torch.dtype
    sizes: tuple[Extent, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class IntSpec:
    """A whole number that may differ from call to call."""

    extent: Extent


@dataclass(frozen=True)
class ConstantSpec:
    """A value that the export fixed."""

    value: Any


Leaf = TensorSpec | IntSpec | ConstantSpec


class ArgumentError(PipelineError, TypeError):
    """A call does not fit its method: one line a mistake."""


@dataclass(frozen=True)
class MethodSpec:
    """The signature of a method.

    Attributes:
        args, kwargs: each argument's name and its value, a tree of Arguments with Leafs.
        outputs: what is returned, a tree of Arguments with Leafs.
        changes: the places, among the leaves of the arguments, of inputs changed in place.
    """

    args: tuple[tuple[str, Any], ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: Any
    changes: tuple[int, ...] = ()

    @property
    def signature(self) -> inspect.Signature:
        """As Python shows it. What the export fixed is a default, where Python allows one."""
        named = all(name.isidentifier() for name, _ in self.args)
        parameter = inspect.Parameter
        kind = parameter.POSITIONAL_OR_KEYWORD if named else parameter.POSITIONAL_ONLY
        parameters = []
        allowed = True
        for number, (name, tree) in reversed([*enumerate(self.args)]):
            default = _default(tree) if allowed else inspect.Parameter.empty
            allowed = default is not inspect.Parameter.empty
            known = name if name.isidentifier() else f"args_{number}"
            parameters.append(inspect.Parameter(known, kind, default=default))
        parameters.reverse()
        for name, tree in self.kwargs:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, keyword, default=_default(tree)))
        return inspect.Signature(parameters)

    def flat_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call, in the order of the method's inputs and as they are given.

        Raises:
            ArgumentError: with all that is wrong.
        """
        mistakes: list[str] = []
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{error}; it takes {self.signature}") from None
        bound.apply_defaults()
        given = [*bound.args, *bound.kwargs.values()]
        pairs = []
        for (_, tree), value in zip((*self.args, *self.kwargs), given, strict=True):
            pairs += list(walk(tree, value, mistakes))
        mistakes += [f"argument '{a.name}': {m}" for a, v in pairs for m in _mistakes(a.value, v)]
        mistakes += size_mistakes([*_sizes(pairs)], _limits(a.value for a, _ in pairs))
        if mistakes:
            raise ArgumentError("\n".join(mistakes))
        return [value for _, value in pairs]

    def laid_out(self, leaves: Sequence[Any]) -> list[Any]:
        """Copies of a call's leaves, in the layout that the method was exported with."""
        arguments = pytree.tree_leaves([tree for _, tree in (*self.args, *self.kwargs)])
        return [
            laid_out(value, a.value.order) if isinstance(a.value, TensorSpec) else value
            for a, value in zip(arguments, leaves, strict=True)
        ]

    def nested_outputs(self, leaves: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """What a call of these leaves returns, of the flat outputs that are no changed inputs.

        Raises:
            PipelineError: they are not what the method declares, with all that is wrong.
        """
        expected = pytree.tree_leaves(self.outputs)
        if len(outputs) != len(expected):
            raise PipelineError(f"gives {len(outputs)} outputs, must give {len(expected)}")
        arguments = pytree.tree_leaves([tree for _, tree in (*self.args, *self.kwargs)])
        pairs = list(zip(arguments, leaves, strict=True))
        bound = bind([(size.expression, size.given) for size in _sizes(pairs)])
        mistakes = [
            f"{argument.name}: {mistake}"
            for argument, value in zip(expected, outputs, strict=True)
            for mistake in _output_mistakes(argument.value, value, bound)
        ]
        if mistakes:
            raise PipelineError("\n".join(mistakes))
        following = iter(outputs)
        return pytree.tree_map(lambda _: next(following), self.outputs)


def spec_of(
    program: ExportedProgram, changes: Sequence[int] = (), again: bool = False
) -> MethodSpec:
    """The signature of a program. Containers other than tuples, lists and dicts count as those that
    they derive from, or else as a tuple of all that is in them.

    Args:
        changes: see MethodSpec; a program that is not functional does not say it.
        again: it was exported a second time, as quantizing does. torch may then ask for sizes of 2
            at least, which the first export did not, so 2 counts as no limit.
    """
    number = _Numbering(program, 2 if again else 0)
    inputs = [Argument(a.name, number.leaf(a.value)) for a in signature(program)]
    args, kwargs = pytree.tree_unflatten(inputs, program.call_spec.in_spec)
    names, keywords = argument_names(program)
    outputs = [Argument(f"output{n}", number.leaf(v, False)) for n, v in _outputs(program)]
    returned = pytree.tree_unflatten(outputs, program.call_spec.out_spec)
    return MethodSpec(
        tuple((name, _plain(tree)) for name, tree in zip(names, args, strict=True)),
        tuple((name, _plain(kwargs[name])) for name in keywords),
        _plain(returned),
        tuple(changes),
    )


def changes_of(functional: ExportedProgram) -> list[int]:
    """The places of the inputs that a functional program, as a lowered one, changes."""
    specs = functional.graph_signature
    inputs = [s.arg.name for s in specs.input_specs if s.kind is InputKind.USER_INPUT]
    changed = [s.target for s in specs.output_specs if s.kind is OutputKind.USER_INPUT_MUTATION]
    return [inputs.index(name) for name in changed]


def flat_spec(inputs: Sequence[Any], outputs: Sequence[Any]) -> MethodSpec:
    """Of what a package declares by itself: arguments without names, by position, of any size up to
    the greatest; a tuple of outputs."""

    def leaf(declared: Any) -> Leaf | None:
        if declared is None or declared.dtype is None:
            return None
        sizes = tuple(Extent(None, 0, size) for size in declared.sizes)
        return TensorSpec(declared.dtype, sizes, tuple(range(len(sizes))))

    names = [f"args[{number}]" for number in range(len(inputs))]
    arguments = tuple((n, Argument(n, leaf(each))) for n, each in zip(names, inputs, strict=True))
    results = (Argument(f"output[{n}]", leaf(each)) for n, each in enumerate(outputs))
    return MethodSpec(arguments, (), tuple(results))


# Making one.


class _Numbering:
    """Leaves of a program, whose symbols are numbered by first use: their names differ from one
    export to the next."""

    def __init__(self, program: ExportedProgram, unlimited: int) -> None:
        self._program = program
        self._unlimited = unlimited
        self._numbers: dict[sympy.Symbol, sympy.Symbol] = {}
        alone = (_size_expressions(a.value) for a in signature(program))
        for each in itertools.chain.from_iterable(alone):
            if isinstance(each, sympy.Symbol):
                self._number(each)

    def leaf(self, value: Any, ordered: bool = True) -> Leaf:
        if isinstance(value, torch.Tensor):
            sizes = tuple(self._extent(size) for size in value.shape)
            order = value.dim_order() if ordered else range(value.ndim)
            return TensorSpec(value.dtype, sizes, tuple(order))
        if isinstance(value, torch.SymInt):
            return IntSpec(self._extent(value))
        return ConstantSpec(value)

    def _extent(self, size: int | torch.SymInt) -> Extent:
        found = expression(size)
        least, greatest = bounds(self._program, found)
        if found.free_symbols and least <= self._unlimited:
            least = 0
        for symbol in sorted(found.free_symbols, key=str):
            self._number(symbol)
        renamed = found.xreplace(self._numbers)
        return Extent(renamed if _is_known(renamed) else None, least, greatest)

    def _number(self, symbol: sympy.Symbol) -> None:
        if symbol not in self._numbers:
            self._numbers[symbol] = size_symbol(f"d{len(self._numbers)}")


def size_symbol(name: str) -> sympy.Symbol:
    """A symbol of sizes; equal where names are."""
    return sympy.Symbol(name, integer=True)


def _size_expressions(value: Any) -> Iterator[sympy.Expr]:
    if isinstance(value, torch.Tensor):
        yield from (expression(size) for size in value.shape)
    elif isinstance(value, torch.SymInt):
        yield expression(value)


def _is_known(expr: sympy.Expr) -> bool:
    if expr.is_Integer or expr.is_Symbol:
        return True
    return (type(expr).__name__ in FUNCTIONS or expr.is_Rational) and all(
        _is_known(each) for each in expr.args
    )


def _outputs(program: ExportedProgram) -> Iterator[tuple[str, Any]]:
    spec = program.call_spec.out_spec
    paths = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))[0]
    nodes: Any = program.graph.output_node().args[0]
    kept = [
        node
        for each, node in zip(program.graph_signature.output_specs, nodes, strict=True)
        if each.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    for (path, _), node in zip(paths, kept, strict=True):
        yield pytree.keystr(path), node.meta["val"] if isinstance(node, Node) else node


def _plain(tree: Any) -> Any:
    if isinstance(tree, Argument):
        return tree
    if isinstance(tree, tuple):
        return tuple(map(_plain, tree))
    if isinstance(tree, list):
        return list(map(_plain, tree))
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return tuple(pytree.tree_leaves(tree))


def _default(tree: Any) -> Any:
    fixed = isinstance(tree, Argument) and isinstance(tree.value, ConstantSpec)
    return tree.value.value if fixed else inspect.Parameter.empty


# Checking with one.


def _mistakes(leaf: Leaf | None, given: Any) -> Iterator[str]:
    """What is wrong with one value, sizes aside. Of None nothing is known."""
    if isinstance(leaf, TensorSpec):
        yield from tensor_mistakes(given, leaf.dtype, len(leaf.sizes))
    elif isinstance(leaf, IntSpec):
        if type(given) is not int:
            yield f"{kind_of(given)}, must be an int"
    elif isinstance(leaf, ConstantSpec):
        yield from constant_mistakes(given, leaf.value)


def _extents(leaf: Leaf | None) -> tuple[Extent, ...]:
    if isinstance(leaf, TensorSpec):
        return leaf.sizes
    return (leaf.extent,) if isinstance(leaf, IntSpec) else ()


def _any(place: Any) -> sympy.Symbol:
    """A symbol that is no other size's."""
    return size_symbol(f"any_{place}")


def _sizes(pairs: Iterable[tuple[Argument, Any]]) -> Iterator[Size]:
    for argument, given in pairs:
        leaf = argument.value
        if isinstance(leaf, IntSpec) and type(given) is int:
            shown = f"argument '{argument.name}': {given}"
            yield Size(shown, _expression(leaf.extent), given)
        elif isinstance(leaf, TensorSpec) and isinstance(given, torch.Tensor):
            for dimension, extent in enumerate(leaf.sizes if given.ndim == len(leaf.sizes) else ()):
                actual = given.shape[dimension]
                shown = f"argument '{argument.name}': size {actual} at dimension {dimension}"
                yield Size(shown, _expression(extent), actual)


def _expression(extent: Extent) -> sympy.Expr:
    return _any(id(extent)) if extent.expression is None else extent.expression


def _limits(leaves: Iterable[Leaf | None]) -> Callable[[sympy.Expr], tuple[int, int | None]]:
    known = {
        _expression(extent): (extent.least, extent.greatest)
        for leaf in leaves
        for extent in _extents(leaf)
    }
    return lambda expr: known[expr]


def _output_mistakes(
    leaf: Leaf | None, given: Any, bound: dict[sympy.Symbol, int]
) -> Iterator[str]:
    if isinstance(leaf, TensorSpec):
        wrong = list(tensor_mistakes(given, leaf.dtype, len(leaf.sizes)))
        yield from wrong
        for dimension, extent in enumerate(() if wrong else leaf.sizes):
            size = given.shape[dimension]
            wanted = None
            if extent.expression is not None:
                wanted = extent.expression.xreplace(integers(bound))
            if wanted is not None and wanted.is_Integer and int(wanted) != size:
                yield f"size {size} at dimension {dimension}, must be {wanted}"
    elif leaf is not None and isinstance(given, torch.Tensor):
        yield "a tensor, must be none"
