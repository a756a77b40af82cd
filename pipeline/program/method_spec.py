"""Record method signatures as their source's author wrote them, independent of the program.

A `.pte` has places, dtypes and greatest sizes. This record adds names of arguments, nesting, values
that the export fixed, which sizes are equal and which inputs a method changes. Compiling makes it,
and a package's manifest holds it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.program import argument_specs as specs
from pipeline.program.argument_specs import (
    Argument,
    ConstantSpec,
    Extent,
    Json,
    Leaf,
    TensorSpec,
)
from pipeline.program.containers import build_plain
from pipeline.program.inputs import decode_tree, encode_tree
from pipeline.program.signature import (
    Pair,
    argument_names,
    bounds,
    expression,
    iter_dynamic_sizes,
    lay_out,
    pair_trees,
    returned_values,
    signature,
)
from pipeline.program.training import find_training_outputs
from pipeline.store.errors import PipelineError


class ArgumentError(PipelineError, TypeError):
    """A call does not fit its method: one line a mistake."""


@dataclass(frozen=True)
class MethodSpec:
    """The signature of a method.

    Attributes:
        args, kwargs: each argument's name and its value, a tree of Arguments with Leafs.
        outputs: what is returned, a tree of Arguments with Leafs. A method that trains returns a
            dict of its `outputs`, and by name its `gradients`, `input_gradients` and `parameters`.
        changes: the places, among the leaves of the arguments, of inputs changed in place.
    """

    args: tuple[tuple[str, Any], ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: Any
    changes: tuple[int, ...] = ()

    @property
    def signature(self) -> inspect.Signature:
        """The Python signature. What the export fixed is a default, where Python allows one."""
        named = all(name.isidentifier() for name, _ in self.args)
        parameter = inspect.Parameter
        kind = parameter.POSITIONAL_OR_KEYWORD if named else parameter.POSITIONAL_ONLY
        parameters: list[inspect.Parameter] = []
        # Backwards: a parameter has no default where the one after it has none.
        default = None
        for number, (name, tree) in reversed([*enumerate(self.args)]):
            if default is not parameter.empty:
                default = _default(tree)
            if name.isidentifier():
                identifier = name
            else:
                identifier = f"args_{number}"
            parameters.insert(0, parameter(identifier, kind, default=default))
        for name, tree in self.kwargs:
            parameters.append(
                parameter(name, parameter.KEYWORD_ONLY, default=_default(tree))
            )
        return inspect.Signature(parameters)

    def flat_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return the leaves of a call unchanged, in the order of the method's inputs.

        Raises:
            ArgumentError: with all that is wrong.
        """
        mistakes: list[str] = []
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{error}; it takes {self.signature}") from None
        bound.apply_defaults()
        values = [*bound.args, *bound.kwargs.values()]
        pairs: list[Pair] = []
        for (_, tree), value in zip((*self.args, *self.kwargs), values, strict=True):
            pair_trees(tree, value, pairs, mistakes)
        mistakes += specs.check_values(pairs)
        if mistakes:
            raise ArgumentError(*mistakes)
        return [value for _, value in pairs]

    @property
    def _arguments(self) -> list[Argument]:
        trees = [tree for _, tree in (*self.args, *self.kwargs)]
        return pytree.tree_leaves(trees)

    def lay_out(self, leaves: Sequence[Any]) -> list[Any]:
        """Return copies of a call's leaves in the layout that the method was exported with."""
        copies = []
        for argument, value in zip(self._arguments, leaves, strict=True):
            if isinstance(argument.value, TensorSpec):
                value = lay_out(value, argument.value.order)
            copies.append(value)
        return copies

    def nested_outputs(self, leaves: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return what a call returns, from its leaves and its flat outputs without changed inputs.

        Raises:
            PipelineError: they are not what the method declares, with all that is wrong.
        """
        expected = pytree.tree_leaves(self.outputs)
        if len(outputs) != len(expected):
            raise PipelineError(
                f"gives {len(outputs)} outputs, must give {len(expected)}"
            )
        sizes = specs.iter_sizes(zip(self._arguments, leaves, strict=True))
        bound = specs.bind_symbols([(size.expression, size.value) for size in sizes])
        mistakes = []
        for argument, value in zip(expected, outputs, strict=True):
            for mistake in _check_output(argument.value, value, bound):
                mistakes.append(f"{argument.name}: {mistake}")
        if mistakes:
            raise PipelineError(*mistakes)
        return pytree.tree_unflatten(outputs, pytree.tree_structure(self.outputs))

    def to_json(self) -> Json:
        """Return the signature as strict JSON, for manifests."""

        def encode_argument(argument: Argument) -> Json:
            return {"name": argument.name, **specs.leaf_to_json(argument.value)}

        def encode(tree: Any) -> Json:
            return encode_tree(tree, encode_argument)

        return {
            "args": [[name, encode(tree)] for name, tree in self.args],
            "kwargs": [[name, encode(tree)] for name, tree in self.kwargs],
            "outputs": encode(self.outputs),
            "changes": list(self.changes),
        }

    @classmethod
    def from_json(cls, data: Json) -> MethodSpec:
        """Return the signature that `to_json` wrote. Raises PipelineError for anything else."""

        def decode_argument(record: Json) -> Argument:
            return Argument(str(record["name"]), specs.leaf_from_json(record))

        def decode(tree: Json) -> Any:
            return decode_tree(tree, decode_argument)

        try:
            method_spec = cls(
                tuple((str(name), decode(tree)) for name, tree in data["args"]),
                tuple((str(name), decode(tree)) for name, tree in data["kwargs"]),
                decode(data["outputs"]),
                tuple(map(int, data["changes"])),
            )
            _ = method_spec.signature  # which takes no names but Python's
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise PipelineError(
                f"a signature that cannot be read ({error!r})"
            ) from error
        except RecursionError as error:
            raise PipelineError(
                "a signature that cannot be read (nested too deep)"
            ) from error
        return method_spec


def make_method_spec(
    program: ExportedProgram, changes: Sequence[int] = (), reexported: bool = False
) -> MethodSpec:
    """Make the signature of a program.

    Containers are tuples, lists and dicts, as `build_plain` makes them.

    Args:
        changes: see MethodSpec; a program that is not functional doesn't say it.
        reexported: whether it was exported a second time, as quantizing does. torch may then ask
            for sizes of at least 2, which the first export did not, so 2 counts as no limit.
    """
    numbering = _Numbering(program, 2 if reexported else 0)
    inputs = [numbering.argument(a.name, a.value) for a in signature(program)]
    args, kwargs = build_plain(inputs, program.call_spec.in_spec)
    names, keywords = argument_names(program)
    outputs = [
        numbering.output(f"output{n}", value) for n, value in returned_values(program)
    ]
    returned = build_plain(outputs, program.call_spec.out_spec)
    training_outputs = find_training_outputs(program)
    if training_outputs is not None:
        returned = {"outputs": returned}
        for kind, values in training_outputs._asdict().items():
            returned[kind] = {
                name: numbering.output(f"{kind}[{name!r}]", value)
                for name, value in values
            }
    return MethodSpec(
        tuple(zip(names, args, strict=True)),
        tuple((name, kwargs[name]) for name in keywords),
        returned,
        tuple(changes),
    )


class _Numbering:
    """Makes leaves whose symbols are numbered by first use: names differ between exports."""

    def __init__(self, program: ExportedProgram, unlimited: int) -> None:
        self._program = program
        self._unlimited = unlimited
        self._numbers: dict[sympy.Symbol, sympy.Symbol] = {}
        # Sizes that are a symbol by themselves get the first numbers.
        for _, size in iter_dynamic_sizes(signature(program)):
            size_expression = expression(size)
            if isinstance(size_expression, sympy.Symbol):
                self._number(size_expression)

    def argument(self, name: str, value: Any) -> Argument:
        return Argument(name, specs.make_leaf(value, self._extent))

    def output(self, name: str, value: Any) -> Argument:
        return Argument(name, specs.make_leaf(value, self._extent, ordered=False))

    def _extent(self, size: int | torch.SymInt) -> Extent:
        size_expression = expression(size)
        symbols = size_expression.free_symbols
        least, greatest = bounds(self._program, size_expression)
        if symbols and least <= self._unlimited:
            least = 0
        for symbol in sorted(symbols, key=str):
            self._number(symbol)
        numbered = size_expression.xreplace(self._numbers)
        return Extent(numbered if _can_be_recorded(numbered) else None, least, greatest)

    def _number(self, symbol: sympy.Symbol) -> None:
        if symbol not in self._numbers:
            self._numbers[symbol] = specs.size_symbol(f"d{len(self._numbers)}")


def _can_be_recorded(size: sympy.Expr) -> bool:
    for part in sympy.preorder_traversal(size):
        if part.is_Rational or part.is_Symbol:
            continue
        if type(part).__name__ not in specs.FUNCTIONS:
            return False
    return True


def _default(tree: Any) -> Any:
    fixed = isinstance(tree, Argument) and isinstance(tree.value, ConstantSpec)
    if fixed:
        return tree.value.value
    return inspect.Parameter.empty


def _check_output(
    leaf: Leaf | None, value: Any, bound: dict[sympy.Symbol, sympy.Integer]
) -> Iterator[str]:
    """Yield what is wrong with an output whose sizes are computed from those of the arguments."""
    if not isinstance(leaf, TensorSpec):
        if leaf is not None and isinstance(value, torch.Tensor):
            yield "a tensor, must be none"
        return
    mistakes = list(specs.check_leaf(leaf, value))
    if mistakes:
        yield from mistakes
        return
    for dimension, extent in enumerate(leaf.sizes):
        size = value.shape[dimension]
        if extent.expression is not None:
            expected = extent.expression.xreplace(bound)
            if expected.is_Integer and int(expected) != size:
                yield f"size {size} at dimension {dimension}, must be {expected}"
