"""Method signatures as their source's author wrote them, as records without the program.

A `.pte` knows places, dtypes and greatest sizes. Names of arguments, nesting, values that the
export fixed, which sizes are equal and which inputs a method changes stand in this record, which
compiling makes and the manifest beside a package keeps.
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
from pipeline.program.argument_specs import Argument, ConstantSpec, Extent, Json, Leaf, TensorSpec
from pipeline.program.containers import build_plain
from pipeline.program.inputs import decode_tree, encode_tree
from pipeline.program.signature import (
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
        default = None  # of the next one: those before one without a default have none either
        for number, (name, tree) in reversed([*enumerate(self.args)]):
            default = parameter.empty if default is parameter.empty else _default(tree)
            known = name if name.isidentifier() else f"args_{number}"
            parameters.insert(0, parameter(known, kind, default=default))
        for name, tree in self.kwargs:
            parameters.append(parameter(name, parameter.KEYWORD_ONLY, default=_default(tree)))
        return inspect.Signature(parameters)

    def flat_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a call, in the order of the method's inputs and as they are given.

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
            pairs += list(pair_trees(tree, value, mistakes))
        mistakes += specs.check_values(pairs)
        if mistakes:
            raise ArgumentError(*mistakes)
        return [value for _, value in pairs]

    @property
    def _arguments(self) -> list[Argument]:
        return pytree.tree_leaves([tree for _, tree in (*self.args, *self.kwargs)])

    def lay_out(self, leaves: Sequence[Any]) -> list[Any]:
        """Return copies of a call's leaves in the layout that the method was exported with."""
        return [
            lay_out(value, a.value.order) if isinstance(a.value, TensorSpec) else value
            for a, value in zip(self._arguments, leaves, strict=True)
        ]

    def nested_outputs(self, leaves: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return what a call returns, from its leaves and its flat outputs without changed inputs.

        Raises:
            PipelineError: they are not what the method declares, with all that is wrong.
        """
        expected = pytree.tree_leaves(self.outputs)
        if len(outputs) != len(expected):
            raise PipelineError(f"gives {len(outputs)} outputs, must give {len(expected)}")
        sizes = specs.iter_sizes(zip(self._arguments, leaves, strict=True))
        bound = specs.bind_symbols([(size.expression, size.given) for size in sizes])
        mistakes = [
            f"{argument.name}: {mistake}"
            for argument, value in zip(expected, outputs, strict=True)
            for mistake in _check_output(argument.value, value, bound)
        ]
        if mistakes:
            raise PipelineError(*mistakes)
        return pytree.tree_unflatten(outputs, pytree.tree_structure(self.outputs))

    def to_json(self) -> Json:
        """Return the signature as strict JSON, for manifests."""

        def encode(tree: Any) -> Json:
            return encode_tree(tree, lambda a: {"name": a.name, **specs.leaf_to_json(a.value)})

        return {
            "args": [[name, encode(tree)] for name, tree in self.args],
            "kwargs": [[name, encode(tree)] for name, tree in self.kwargs],
            "outputs": encode(self.outputs),
            "changes": list(self.changes),
        }

    @classmethod
    def from_json(cls, data: Json) -> MethodSpec:
        """Return the signature that `to_json` wrote. Raises PipelineError for anything else."""

        def decode(tree: Json) -> Any:
            return decode_tree(tree, lambda a: Argument(str(a["name"]), specs.leaf_from_json(a)))

        try:
            made = cls(
                tuple((str(name), decode(tree)) for name, tree in data["args"]),
                tuple((str(name), decode(tree)) for name, tree in data["kwargs"]),
                decode(data["outputs"]),
                tuple(map(int, data["changes"])),
            )
            _ = made.signature  # which takes no names but Python's
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise PipelineError(f"a signature that cannot be read ({error!r})") from error
        except RecursionError as error:
            raise PipelineError("a signature that cannot be read (nested too deep)") from error
        return made


def make_method_spec(
    program: ExportedProgram, changes: Sequence[int] = (), again: bool = False
) -> MethodSpec:
    """Make the signature of a program.

    Containers are tuples, lists and dicts, as `build_plain` makes them.

    Args:
        changes: see MethodSpec; a program that is not functional does not say it.
        again: it was exported a second time, as quantizing does. torch may then ask for sizes of 2
            at least, which the first export did not, so 2 counts as no limit.
    """
    number = _Numbering(program, 2 if again else 0)
    inputs = [Argument(a.name, number.leaf(a.value)) for a in signature(program)]
    args, kwargs = build_plain(inputs, program.call_spec.in_spec)
    names, keywords = argument_names(program)
    outputs = [Argument(f"output{n}", number.leaf(v, False)) for n, v in returned_values(program)]
    returned = build_plain(outputs, program.call_spec.out_spec)
    if (trained := find_training_outputs(program)) is not None:
        more = {
            kind: {name: Argument(f"{kind}[{name!r}]", number.leaf(v, False)) for name, v in values}
            for kind, values in trained._asdict().items()
        }
        returned = {"outputs": returned, **more}
    return MethodSpec(
        tuple(zip(names, args, strict=True)),
        tuple((name, kwargs[name]) for name in keywords),
        returned,
        tuple(changes),
    )


def make_flat_spec(inputs: Sequence[Any], outputs: Sequence[Any]) -> MethodSpec:
    """Make the signature of what a package declares by itself.

    Arguments have no names, but positions, and any size up to the greatest; outputs are a tuple.
    """

    def leaf(declared: Any) -> Leaf | None:
        if declared is None or declared.dtype is None:
            return None
        sizes = tuple(Extent(None, 0, size) for size in declared.sizes)
        return TensorSpec(declared.dtype, sizes, tuple(range(len(sizes))))

    names = [f"args[{number}]" for number in range(len(inputs))]
    arguments = tuple((n, Argument(n, leaf(each))) for n, each in zip(names, inputs, strict=True))
    results = (Argument(f"output[{n}]", leaf(each)) for n, each in enumerate(outputs))
    return MethodSpec(arguments, (), tuple(results))


class _Numbering:
    """Makes leaves whose symbols are numbered by first use: names differ between exports."""

    def __init__(self, program: ExportedProgram, unlimited: int) -> None:
        self._program = program
        self._unlimited = unlimited
        self._numbers: dict[sympy.Symbol, sympy.Symbol] = {}
        for _, size in iter_dynamic_sizes(signature(program)):  # first those that stand alone
            if isinstance(found := expression(size), sympy.Symbol):
                self._number(found)

    def leaf(self, value: Any, ordered: bool = True) -> Leaf:
        return specs.make_leaf(value, self._extent, ordered)

    def _extent(self, size: int | torch.SymInt) -> Extent:
        found = expression(size)
        least, greatest = bounds(self._program, found)
        if found.free_symbols and least <= self._unlimited:
            least = 0
        for symbol in sorted(found.free_symbols, key=str):
            self._number(symbol)
        renamed = found.xreplace(self._numbers)
        known = all(
            each.is_Rational or each.is_Symbol or type(each).__name__ in specs.FUNCTIONS
            for each in sympy.preorder_traversal(renamed)
        )
        return Extent(renamed if known else None, least, greatest)

    def _number(self, symbol: sympy.Symbol) -> None:
        if symbol not in self._numbers:
            self._numbers[symbol] = specs.size_symbol(f"d{len(self._numbers)}")


def _default(tree: Any) -> Any:
    fixed = isinstance(tree, Argument) and isinstance(tree.value, ConstantSpec)
    return tree.value.value if fixed else inspect.Parameter.empty


def _check_output(
    leaf: Leaf | None, given: Any, bound: dict[sympy.Symbol, sympy.Integer]
) -> Iterator[str]:
    if not isinstance(leaf, TensorSpec):
        if leaf is not None and isinstance(given, torch.Tensor):
            yield "a tensor, must be none"
        return
    wrong = list(specs.check_leaf(leaf, given))
    yield from wrong
    for dimension, extent in enumerate(() if wrong else leaf.sizes):
        size = given.shape[dimension]
        if extent.expression is not None:
            wanted = extent.expression.xreplace(bound)
            if wanted.is_Integer and int(wanted) != size:
                yield f"size {size} at dimension {dimension}, must be {wanted}"
